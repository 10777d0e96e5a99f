"""What a sealer commits beside the offset, for ``status``, and logs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from rollstream.consumers.sealing.offsets import CommittedOffset
from rollstream.runtime.clock import ManualClock
from rollstream.streams.broker import TopicPartition
from rollstream.streams.errors import BrokerUnavailable

SOURCE = TopicPartition("rollouts.math", 3)


ASK_S = 1.0


def committed_by(clock: ManualClock, *, answers: bool) -> CommittedOffset:
    """Of a group that said what it has, and answers commits or does not."""
    offset = offset_of(clock, answers=answers, found=dict)
    assert offset.is_known()
    return offset


def offset_of(clock: ManualClock, *, answers: bool, found: Callable[[], object]) -> CommittedOffset:
    """Of a group that says what is ``found``, and answers commits or does not."""

    def commit(*_: object) -> Future[bool]:
        answer: Future[bool] = Future()
        if answers:
            answer.set_result(True)
        return answer

    context: Any = SimpleNamespace(clock=clock, ask_s=ASK_S)
    reader: Any = SimpleNamespace(commit=commit)
    asked: Any = SimpleNamespace(answer=found)
    return CommittedOffset(context, reader, SOURCE, asked, lambda: 0)


@pytest.mark.parametrize("answers", [True, False])
def test_a_trouble_that_lasts_is_one_line(caplog: pytest.LogCaptureFixture, answers: bool) -> None:
    clock = ManualClock()
    offset = committed_by(clock, answers=answers)
    for _ in range(600):
        offset.tell(lambda: "put_files hangs")
        clock.advance(0.1)
    assert caplog.messages.count(f"{SOURCE}: put_files hangs") == 1


def test_a_trouble_is_logged_though_the_group_never_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    offset = offset_of(clock, answers=False, found=lambda: None)
    for _ in range(600):
        assert not offset.is_known()
        offset.tell(lambda: "put_files hangs")
        clock.advance(0.1)
    assert caplog.messages.count(f"{SOURCE}: put_files hangs") == 1


def test_who_asks_whose_the_partition_is_learns_that_nobody_answers() -> None:
    clock = ManualClock()
    offset = committed_by(clock, answers=False)
    assert offset.is_ours() is None
    clock.advance(ASK_S + 0.1)
    offset.tell(str)
    with pytest.raises(BrokerUnavailable):
        offset.is_ours()


def test_a_trouble_in_ever_other_words_is_a_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock, requests = ManualClock(), count()
    offset = committed_by(clock, answers=True)
    for _ in range(1_500):
        offset.tell(lambda: f"the store: refused, request {next(requests)}")
        clock.advance(0.1)
    assert len(caplog.messages) == 3


def test_a_trouble_that_comes_again_is_told_again(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    offset = committed_by(clock, answers=True)
    for trouble in ("put_files hangs", "", "put_files hangs"):
        for _ in range(2_000):
            offset.tell(partial(str, trouble))
            clock.advance(0.1)
    assert caplog.messages == [f"{SOURCE}: put_files hangs"] * 2
