"""Reads the logs of scores no farther ahead of the groups than is held of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from rollstream.runtime.clock import Clock
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.broker import TopicPartition
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.folds.sampler.state import SamplerState
from rollstream.streams.owned.follow import Follower

ASK_EVERY_S = 1.0
ANSWER_S = 2.0  # Decisions wait for it.
_log = logging.getLogger("rollstream.sampler")


class ScorePressure:
    """Pauses a log of which as much waits for groups as may be held, and forgets what waits in
    vain.

    A score is in time for a group by the log times of the two. Once the seal logs were read up to
    the last moment at which a group would be in time, the score is of no use, whoever folds.

    Args:
        seal_logs: of all environments.
    """

    def __init__(self, seal_logs: Mapping[TopicPartition, PartitionAddress], clock: Clock) -> None:
        self._seal_logs = seal_logs
        self._clock = clock
        self._ask_at_s = 0.0

    def look(
        self,
        state: SamplerState,
        follower: Follower,
        score_logs: Mapping[TopicPartition, PartitionAddress],
    ) -> None:
        """Forgets, pauses and goes on, where there is anything to. Where the broker said that
        seal logs are not read far enough, it is asked again after ``ASK_EVERY_S``, or where another
        log is full."""
        if not (state.late.early or follower.paused):
            return
        now_s = self._clock.monotonic_s()
        full = {where for where, log in score_logs.items() if state.late.is_full(log)}
        if now_s >= self._ask_at_s or not full <= follower.paused:
            for environment in dict.fromkeys(log.environment for log in score_logs.values()):
                if state.late.any_overdue(environment):
                    self._ask_at_s = now_s + ASK_EVERY_S
                    self.read_so_far(state, follower, environment)
        for where, log in score_logs.items():
            if not state.late.is_full(log):
                follower.go_on(where)
            elif where not in follower.paused:
                follower.pause(where)
                _log.warning(
                    "sampler %r: scores of %s are read on once groups of those that were read are "
                    "sealed, or have waited for too long: %d wait for a group; see that sealers "
                    "run, and score sealed groups by their group_id (docs/guides/late_rewards.md)",
                    state.name,
                    log,
                    state.late.early,
                )

    def read_so_far(self, state: SamplerState, follower: Follower, environment: str) -> None:
        """Tells the state up to which log time the environment's seal logs were read, where the
        broker says that they were."""
        passed_ts = state.late.passed_ts
        logs = [at for at, log in self._seal_logs.items() if log.environment == environment]
        try:
            read = all(follower.has_read(where, passed_ts, ANSWER_S) for where in logs)
        except BrokerUnavailable:
            return  # The next look asks again.
        if read:
            state.late.seal_logs_read(environment, passed_ts)
