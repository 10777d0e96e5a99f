"""What a worker that waits for a policy is told."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from harness.admission import announced
from rollstream.producers import RunOver
from rollstream.producers.admission.asking import SharedWait, newest_policy
from rollstream.producers.admission.policies import Wanted
from rollstream.runtime.at_once import at_once
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.deadline import Deadline


def test_a_worker_that_waits_after_a_run_is_told_that_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    log: Any = SimpleNamespace(policies=lambda: {"a": announced(5, over=True)}, ended=dict)

    async def wait(seen: int, timeout_s: float) -> int:
        clock.advance(31.0)
        return seen

    async def pause(timeout_s: float) -> None:
        clock.advance(timeout_s)

    with pytest.raises(RunOver):
        at_once(newest_policy(Wanted("math", None, None), log, wait, pause, Deadline(60.0, clock)))
    (line,) = caplog.messages
    assert "waited 31 s so far for a trainer" in line
    assert "the run of sampler 'a' is over" in line


def test_a_defect_in_the_thread_that_waits_is_raised_by_those_that_wait() -> None:
    def wait(seen: int, timeout_s: float) -> int:
        raise TypeError("what nobody thought of")

    log: Any = SimpleNamespace(wait=wait)
    with pytest.raises(TypeError, match="what nobody thought of"):
        asyncio.run(SharedWait(log).wait(0, 30.0))
