"""How long a sealer waits before it tries again, and what it logs meanwhile."""

from __future__ import annotations

import pytest

from rollstream.consumers.beside.backoff import FIRST_WAIT_S, LONGEST_WAIT_S, Backoff
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.deadline import LOG_WAITING_EVERY_S
from rollstream.store import StoreError


def wait_of(backoff: Backoff, clock: ManualClock) -> float:
    """How long it is active, to a hundredth of a second."""
    hundredths = 0
    while backoff.active():
        clock.advance(0.01)
        hundredths += 1
    return hundredths / 100


def test_waits_double_up_to_the_longest_and_begin_anew_after_a_success() -> None:
    clock = ManualClock()
    backoff = Backoff(clock)
    assert not backoff.active(), "nothing failed yet"
    waits = []
    for _ in range(9):
        backoff.record_failure("put_files", StoreError("disk full"))
        waits.append(wait_of(backoff, clock))
    doubled = [min(FIRST_WAIT_S * 2**n, LONGEST_WAIT_S) for n in range(9)]
    assert waits == pytest.approx(doubled, abs=0.011)
    backoff.record_failure("put_files", StoreError("disk full"))
    backoff.reset()
    assert not backoff.active()
    backoff.record_failure("put_files", StoreError("disk full"))
    assert wait_of(backoff, clock) == pytest.approx(FIRST_WAIT_S, abs=0.011)


def test_failures_are_logged_at_first_and_then_once_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    backoff = Backoff(clock)
    for _ in range(100):
        backoff.record_failure("put_files", StoreError("disk full"))
        clock.advance(1.0)
    assert "put_files: disk full; trying again" in caplog.messages[0]
    assert len(caplog.messages) == 1 + 100 // LOG_WAITING_EVERY_S
    assert all("disk full" in message for message in caplog.messages)
