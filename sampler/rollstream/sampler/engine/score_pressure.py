"""Reads the logs of scores no farther ahead of the groups than is held of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rollstream.folds.state import SamplerState
from rollstream.runtime.clock import Clock
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.broker import TopicPartition
from rollstream.streams.errors import BrokerError
from rollstream.streams.owned.follow import Follower

ASK_EVERY_S = 1.0
ANSWERS_S = 2.0  # For all that one look asks: who polls the logs waits for it, and nobody else.
UNANSWERED_S = 10.0  # A broker that did not answer by then is left alone for so long.
NEXT_START = (
    ". Scores that may be of its groups were forgotten meanwhile, so that all others were read: "
    "start the sampler again once the log can be read"
)
_log = logging.getLogger("rollstream.sampler")


class Questions(NamedTuple):
    """What the broker is to be asked.

    Attributes:
        passed_ts: a log time that has passed.
        read: by environment, its seal logs, those of which the least is known first: was each read
            up to then?
        ends: logs of scores: where does each end?
    """

    passed_ts: int
    read: Mapping[str, Sequence[TopicPartition]]
    ends: Sequence[TopicPartition]

    def ask(self, follower: Follower, deadline: Deadline) -> Answers:
        """Called by whoever polls the follower. What the follower returned before is to be folded
        before the answers are settled."""
        answers = Answers(self.passed_ts, {name: [] for name in self.read}, {})
        try:
            for name, logs in self.read.items():
                for where in logs:
                    if deadline.passed() or not follower.has_read(
                        where, self.passed_ts, deadline.left_s()
                    ):
                        break
                    answers.read[name].append(where)
            for where in self.ends:
                if deadline.passed():
                    break
                answers.ends[where] = follower.end_of(where, deadline.left_s())
        except BrokerError:  # Also one that is refused for a moment, as while a leader moves.
            return answers._replace(answered=False)
        return answers


class Answers(NamedTuple):
    """What the broker answered by then: the logs that were read up to ``passed_ts``, and ends."""

    passed_ts: int
    read: dict[str, list[TopicPartition]]
    ends: dict[TopicPartition, int]
    answered: bool = True


class ScorePressure:
    """Pauses a log of which as much waits for groups as may be held, and forgets what waits in
    vain. The state knows which logs are paused, or were and are not read to their ends since:
    ``LateScores.behind``.

    A score is in time for a group by the log times of the two. Once the seal logs were read up to
    the last moment at which a group would be in time, the score is of no use, whoever folds.

    A seal log that is put aside does not count while a log of scores is paused, or it would stop
    the scores of all other partitions. What is forgotten then may be of its groups.

    Args:
        seal_logs: of all environments.
        score_logs: the same; read at each look.

    Attributes:
        passed_over: the seal logs without which scores were forgotten. Who folds on from this state
            must not read them on.
    """

    def __init__(
        self,
        seal_logs: Mapping[TopicPartition, PartitionAddress],
        score_logs: Mapping[TopicPartition, PartitionAddress],
        clock: Clock,
    ) -> None:
        self._seal_logs = seal_logs
        self._score_logs = score_logs
        self._clock = clock
        self._ask_at_s = 0.0
        self._read_to = dict.fromkeys(seal_logs, 0)  # Log times up to which they were read.
        self._ends: dict[TopicPartition, int] = {}  # Of logs that are behind, once they go on.
        self.passed_over: set[TopicPartition] = set()

    def told_of(self, seal_log: TopicPartition) -> str:
        """Returns what is to be said of this log that is put aside; empty: nothing."""
        return NEXT_START if seal_log in self.passed_over else ""

    def look(self, state: SamplerState, follower: Follower) -> None:
        """Asks, and settles, for who reads whole logs."""
        questions = self.questions(state, follower)
        answers = questions and questions.ask(follower, Deadline(ANSWERS_S, self._clock))
        self.settle(state, follower, answers)

    def look_at(
        self, state: SamplerState, follower: Follower, environment: str, deadline: Deadline
    ) -> None:
        """Tells the state how far this environment's seal logs were read."""
        answers = self.questions_of(state, follower, [environment]).ask(follower, deadline)
        self._settle_answers(state, follower, answers)

    def questions(self, state: SamplerState, follower: Follower) -> Questions | None:
        """What the broker is to be asked now; None: nothing. Asks again after ``ASK_EVERY_S``, or
        where another log is full."""
        late, now_s = state.late, self._clock.monotonic_s()
        if not (late.early or late.behind or follower.paused):
            return None
        full = {where for where, log in self._score_logs.items() if late.is_full(log)}
        if now_s < self._ask_at_s and full <= follower.paused:
            return None
        environments = dict.fromkeys(log.environment for log in self._score_logs.values())
        overdue = [name for name in environments if late.any_overdue(name)]
        ends = [
            where
            for where, log in self._score_logs.items()
            if log in late.behind and where not in self._ends and _is_read(follower, where)
        ]
        return self.questions_of(state, follower, overdue, ends) if overdue or ends else None

    def questions_of(
        self,
        state: SamplerState,
        follower: Follower,
        environments: Iterable[str],
        ends: Sequence[TopicPartition] = (),
    ) -> Questions:
        """Up to which log time the seal logs of these environments were read, and these ends."""
        read = {
            name: sorted(
                (where for where in self._logs_of(name) if not follower.is_aside(where)),
                key=self._read_to.__getitem__,
            )
            for name in environments
        }
        return Questions(state.late.passed_ts, read, ends)

    def settle(self, state: SamplerState, follower: Follower, answers: Answers | None) -> None:
        """Forgets by the answers, pauses and goes on, where there is anything to. Asks nobody."""
        late = state.late
        if answers is not None:
            self._settle_answers(state, follower, answers)
        self._catch_up(state, follower)
        if not (late.early or late.behind or follower.paused):
            return
        for where, log in self._score_logs.items():
            if not late.is_full(log):
                follower.go_on(where)
            elif where not in follower.paused:
                follower.pause(where)
                late.behind.add(log)
                self._ask_at_s = self._clock.monotonic_s()
                _log.warning(
                    "sampler %r: scores of %s are read on once groups of those that were read are "
                    "sealed, or have waited for too long: %d wait for a group; see that sealers "
                    "run, and score sealed groups by their group_id (docs/guides/late_rewards.md)",
                    state.name,
                    log,
                    late.early,
                )

    def _settle_answers(self, state: SamplerState, follower: Follower, answers: Answers) -> None:
        again_s = ASK_EVERY_S if answers.answered else UNANSWERED_S
        self._ask_at_s = self._clock.monotonic_s() + again_s
        self._ends.update(answers.ends)
        for environment, read in answers.read.items():
            logs = self._logs_of(environment)
            aside = {where for where in logs if follower.is_aside(where)}
            for where in {*read} - aside:
                self._read_to[where] = max(self._read_to[where], answers.passed_ts)
            if aside and any(state.late.is_full(self._seal_logs[where]) for where in logs):
                logs = [where for where in logs if where not in aside]
                self.passed_over |= aside
            if logs:
                passed_ts = min(self._read_to[where] for where in logs)
                state.late.seal_logs_read(environment, passed_ts)

    def _catch_up(self, state: SamplerState, follower: Follower) -> None:
        """Takes note of the logs that were paused or put aside, and since were read to where they
        ended when they went on; and of those that are not there any more."""
        behind = state.late.behind
        if not behind:
            self._ends.clear()
            return
        behind &= {*self._score_logs.values()}
        for where, log in self._score_logs.items():
            if log not in behind or not _is_read(follower, where):
                self._ends.pop(where, None)
            elif where in self._ends and follower.next_offsets()[where] >= self._ends[where]:
                behind.discard(log)
                del self._ends[where]

    def _logs_of(self, environment: str) -> list[TopicPartition]:
        return [at for at, log in self._seal_logs.items() if log.environment == environment]


def _is_read(follower: Follower, where: TopicPartition) -> bool:
    """Whether the log is neither paused nor put aside."""
    return where not in follower.paused and not follower.is_aside(where)
