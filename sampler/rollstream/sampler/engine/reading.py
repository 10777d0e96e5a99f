"""What one thread reads of the seal logs while others decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rollstream.runtime.clock import Clock
from rollstream.runtime.deadline import Deadline
from rollstream.sampler.engine.score_pressure import ANSWERS_S, Answers, Questions
from rollstream.streams.owned.follow import ConfirmedEvent, Follower

FOLLOW_RECORDS_MAX = 256  # Flushes that are folded at a time.
# Whole logs are read from a broker that answers, for as long as it takes: these count only while
# nothing is folded.
READ_TIMEOUT_FACTOR = 4.0
READ_TIMEOUT_S_MIN = 120.0


def reading_deadline(timeout_s: float, clock: Clock) -> Deadline:
    """For reads of whole logs, while nothing is folded."""
    return Deadline(max(timeout_s * READ_TIMEOUT_FACTOR, READ_TIMEOUT_S_MIN), clock)


class Arrived(NamedTuple):
    """Of one poll: what was sealed and scored, and what else the broker was asked."""

    sealed: Sequence[ConfirmedEvent]
    answers: Answers | None = None


class Reading(NamedTuple):
    """The logs, read by the one thread that polls them once, which needs no lock."""

    follower: Follower
    questions: Questions | None
    clock: Clock

    def poll(self, timeout_s: float) -> Arrived:
        """Waits for what is sealed next; asks the broker what is to be asked besides."""
        sealed = self.follower.poll(FOLLOW_RECORDS_MAX, timeout_s)
        questions = self.questions
        answers = questions and questions.ask(self.follower, Deadline(ANSWERS_S, self.clock))
        return Arrived(sealed, answers)
