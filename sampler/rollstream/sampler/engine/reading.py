"""What one thread reads of the seal logs while others decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rollstream.runtime.clock import Clock
from rollstream.runtime.deadline import Deadline
from rollstream.sampler.engine.score_pressure import ANSWERS_S, Answers, Questions
from rollstream.streams.owned.follow import ConfirmedEvent, Follower

FOLLOW_RECORDS_MAX = 256  # Flushes that are folded at a time.


class Arrived(NamedTuple):
    """Of one poll: what was sealed and scored, and what else the broker was asked."""

    sealed: Sequence[ConfirmedEvent]
    answers: Answers | None = None


class Reading:
    """The logs, read by the one thread that polls them, which needs no lock."""

    def __init__(self, follower: Follower, questions: Questions | None, clock: Clock) -> None:
        self.follower = follower
        self._questions = questions
        self._clock = clock

    def poll(self, timeout_s: float) -> Arrived:
        """Waits for what is sealed next; asks the broker what is to be asked besides."""
        sealed = self.follower.poll(FOLLOW_RECORDS_MAX, timeout_s)
        questions, self._questions = self._questions, None
        answers = questions and questions.ask(self.follower, Deadline(ANSWERS_S, self._clock))
        return Arrived(sealed, answers)
