"""Reads the logs of scores no farther ahead of the groups than is held of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from rollstream.folds.state import SamplerState
from rollstream.runtime.clock import Clock
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.broker import TopicPartition
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.owned.follow import Follower

ASK_EVERY_S = 1.0
ANSWERS_S = 2.0  # For all that one look asks: decisions wait for it.
UNANSWERED_S = 10.0  # A broker that did not answer by then is left alone for so long.
T = TypeVar("T")
_log = logging.getLogger("rollstream.sampler")


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

    Attributes:
        passed_over: the seal logs without which scores were forgotten. Who folds on from this state
            must not read them on.
    """

    def __init__(self, seal_logs: Mapping[TopicPartition, PartitionAddress], clock: Clock) -> None:
        self._seal_logs = seal_logs
        self._clock = clock
        self._ask_at_s = 0.0
        self._read_to = dict.fromkeys(seal_logs, 0)  # Log times up to which they were read.
        self._ends: dict[TopicPartition, int] = {}  # Of logs that are behind, once they go on.
        self.passed_over: set[TopicPartition] = set()

    def look(
        self,
        state: SamplerState,
        follower: Follower,
        score_logs: Mapping[TopicPartition, PartitionAddress],
    ) -> None:
        """Forgets, pauses and goes on, where there is anything to. The broker is asked again after
        ``ASK_EVERY_S``, or where another log is full."""
        late = state.late
        if not (late.early or late.behind or follower.paused):
            return
        now_s = self._clock.monotonic_s()
        full = {where for where, log in score_logs.items() if late.is_full(log)}
        if now_s >= self._ask_at_s or not full <= follower.paused:
            deadline = Deadline(ANSWERS_S, self._clock)
            for environment in dict.fromkeys(log.environment for log in score_logs.values()):
                if late.any_overdue(environment):
                    self._ask_at_s = now_s + ASK_EVERY_S
                    self.read_so_far(state, follower, environment, deadline)
            self._catch_up(state, follower, score_logs, deadline)
        for where, log in score_logs.items():
            if not late.is_full(log):
                follower.go_on(where)
            elif where not in follower.paused:
                follower.pause(where)
                late.behind.add(log)
                _log.warning(
                    "sampler %r: scores of %s are read on once groups of those that were read are "
                    "sealed, or have waited for too long: %d wait for a group; see that sealers "
                    "run, and score sealed groups by their group_id (docs/guides/late_rewards.md)",
                    state.name,
                    log,
                    late.early,
                )

    def read_so_far(
        self, state: SamplerState, follower: Follower, environment: str, deadline: Deadline
    ) -> None:
        """Tells the state up to which log time the environment's seal logs were read, as far as the
        broker says so by then; it is asked first about those of which the least is known."""
        passed_ts = state.late.passed_ts
        logs = [at for at, log in self._seal_logs.items() if log.environment == environment]
        aside = {where for where in logs if follower.is_aside(where)}
        for where in sorted({*logs} - aside, key=self._read_to.__getitem__):
            ask = partial(follower.has_read, where, passed_ts)
            if not self._answer(ask, deadline):
                break
            self._read_to[where] = max(self._read_to[where], passed_ts)
        if aside and any(state.late.is_full(self._seal_logs[where]) for where in logs):
            logs = [where for where in logs if where not in aside]
            self.passed_over |= aside
        if logs:
            state.late.seal_logs_read(environment, min(self._read_to[where] for where in logs))

    def _catch_up(
        self,
        state: SamplerState,
        follower: Follower,
        score_logs: Mapping[TopicPartition, PartitionAddress],
        deadline: Deadline,
    ) -> None:
        """Takes note of the logs that were paused, and since were read to where they ended when
        they went on."""
        for where, log in score_logs.items():
            if log not in state.late.behind or where in follower.paused:
                self._ends.pop(where, None)
                continue
            if where not in self._ends:
                end = self._answer(partial(follower.end_of, where), deadline)
                if end is None:
                    break
                self._ends[where] = end
            if follower.next_offsets()[where] >= self._ends[where]:
                state.late.behind.discard(log)

    def _answer(self, ask: Callable[[float], T], deadline: Deadline) -> T | None:
        """What the broker answers; None where it does not by then: a later look asks again."""
        if deadline.passed():
            return None
        try:
            return ask(deadline.left_s())
        except BrokerUnavailable:
            self._ask_at_s = self._clock.monotonic_s() + UNANSWERED_S
            return None
