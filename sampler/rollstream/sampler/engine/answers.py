"""What calls are answered with, and which of them need no decision of their own."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Hashable, Mapping

from rollstream.runtime.clock import Clock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.metrics import catalogue
from rollstream.runtime.metrics.timings import Observe
from rollstream.sampler.decide.command import Command, FromStore, R, Reply, ResultContext, Unread
from rollstream.sampler.engine.calls import Call, WaitingCalls
from rollstream.sampler.engine.logs import SamplerLogs
from rollstream.sampler.rows.deliver import Delivery
from rollstream.sampler.rows.payloads import Payloads
from rollstream.streams.folds.in_flight import LivingProducers

TIMES_KEPT = 512  # Of the newest calls for batches; one that failed, or was given up, is none.


class Answers:
    """Answers calls whose decision is confirmed. Not shared between threads.

    Args:
        waiting: counted for statistics.
        observe: takes how long each call for a batch took, waiting included.
        capacity: as of ``ResultContext``.

    Attributes:
        decided: keys of decisions that stand: nothing changed since.
    """

    def __init__(
        self,
        config: RollstreamConfig,
        logs: SamplerLogs,
        delivery: Delivery,
        payloads: Payloads,
        waiting: WaitingCalls,
        clock: Clock,
        observe: Observe,
        capacity: Callable[[], Mapping[str, tuple[int, LivingProducers]]],
    ) -> None:
        self._config = config
        self._logs = logs
        self._delivery = delivery
        self._payloads = payloads
        self._waiting = waiting
        self._clock = clock
        self._observe = observe
        self._took_ms: deque[float] = deque(maxlen=TIMES_KEPT)
        self._capacity = capacity
        self.decided: set[Hashable] = set()

    def decided_already(self, call: Call[R]) -> bool:
        """Whether the decision that the call is for stands, so that one of a batch's ranks decides.
        It is known that nobody had taken over at some time after the call was begun."""
        if not call.command.claims:  # It decides nothing. Its key may have no hash.
            return False
        key, logs = call.decision_key, self._logs
        return key in self.decided and logs.claimed and logs.knows_to_own(call.number)

    def answer(self, call: Call[R]) -> None:
        """Ends the call, unless it has ended; raises as its ``check_own`` and ``result``."""
        call.command.check_own(self._logs.state)
        if call.answer(self._reply(call.command)) and call.begun_s is not None:
            took_s = self._clock.monotonic_s() - call.begun_s
            self._took_ms.append(1e3 * took_s)
            self._observe(catalogue.SAMPLER_BATCH, took_s, self._logs.state.name)

    def context(self) -> ResultContext:
        """What results may be made of besides the state."""
        return ResultContext(
            os.getpid(),
            self._config,
            self._delivery.groups_read,
            self._payloads.cached_bytes,
            len(self._waiting),
            self._logs.log_clock.now_us(),
            self._took_ms.copy,
            self._capacity,
        )

    def _reply(self, command: Command[R]) -> Reply[R | Unread[R]]:
        state = self._logs.state
        if isinstance(command, FromStore):
            return Reply(state.trainer_epoch, self._delivery.result(command, state))
        return Reply(state.trainer_epoch, command.result(state, self.context()))
