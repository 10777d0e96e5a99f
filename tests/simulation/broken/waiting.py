"""Sealers of which one part hinders all others, or that give up what they must not."""

from __future__ import annotations

import math
import threading
from unittest.mock import patch

from harness.wrong_clock import HOUR_US, WrongClock
from rollstream.consumers.sealing.offsets import CommittedOffset
from rollstream.consumers.sealing.partition import Partition
from rollstream.streams.owned.appends import Appends
from rollstream.streams.owned.log_clock import LogClock
from simulation.consumers.silences import Silences

# By these names: an exception within a world counts as a defect that was caught.
answer_to, now_us = CommittedOffset._answer_to, LogClock.now_us
tell = CommittedOffset.tell
begin, put_aside = Appends.begin, Partition.put_aside


class WaitingForCommits(Silences):
    """The loop waits for the answer to each commit."""

    def run(self) -> None:
        clock = self.world.clock

        def wait(offset: CommittedOffset, sent: object) -> bool | None:
            if not sent.answer.done():  # type: ignore[attr-defined]
                clock.wait(threading.Event(), 5.0)
            return answer_to(offset, sent)  # type: ignore[arg-type]

        with patch.object(CommittedOffset, answer_to.__name__, wait):
            super().run()


class GoingByTheirClocks(Silences):
    """Their clocks are an hour ahead, and decide when a group has waited for long enough."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, clock=lambda clock: WrongClock(clock, HOUR_US))

    def run(self) -> None:
        with patch.object(LogClock, now_us.__name__, lambda log_clock: log_clock._clock.now_us()):
            super().run()


class NeverInDoubt(Silences):
    """They wait for ever for what the broker will not confirm."""

    def run(self) -> None:
        def begin_without_end(appends: Appends, *args: object) -> object:
            appends._timeout_s = math.inf
            return begin(appends, *args)  # type: ignore[arg-type]

        with patch.object(Appends, begin.__name__, begin_without_end):
            super().run()


class EndingForOne(Silences):
    """A record that nobody can read ends the whole sealer."""

    def run(self) -> None:
        def end(partition: Partition, error: Exception) -> None:
            raise error

        with patch.object(Partition, put_aside.__name__, end):
            super().run()


class NeverTelling(Silences):
    """Nobody learns that a store hangs."""

    def run(self) -> None:
        with patch.object(CommittedOffset, tell.__name__, lambda offset, trouble: None):
            super().run()
