"""Asks the broker for calls that append nothing, while others decide."""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import inf
from typing import Any

from rollstream.runtime.deadline import Deadline
from rollstream.sampler.engine.calls import Call
from rollstream.sampler.engine.logs import SamplerLogs
from rollstream.streams.errors import BrokerUnavailable

SLICE_S = 0.05  # The longest that a call waits before it looks what was folded.


class AskFirst(Exception):
    """The broker is to be asked for this call, which needs no lock, before it is decided."""


class AskedCalls:
    """What is asked for calls: who owns the decision log, and where the seal logs end.

    Args:
        lock: guards ``logs``; notified when a thread has read the seal logs.
        follow: reads them, as ``Owner.follow``.
    """

    def __init__(
        self, logs: SamplerLogs, lock: threading.Condition, follow: Callable[[float], bool]
    ) -> None:
        self._logs = logs
        self._lock = lock
        self._follow = follow

    def ask(self, call: Call[Any], *, reads: bool) -> None:
        """Asks for the call, and waits until all is folded that it is to see. Holds no lock.

        Args:
            reads: whether this thread reads the seal logs while no other does.

        Raises:
            BrokerUnavailable: it did not answer in time. Fenced, SamplerUnavailable: another owner
                took over, or this one is closed. Others as ``Owner.follow``.
        """
        ends = self._logs.ends
        ends.decisions.ask(call.number, self._logs.attempt(), self._check)
        call.asked = True
        if not call.command.to_the_ends:
            return
        call.ends = ends.sealed.ask(call.number, self._logs.attempt(), self._check)
        before, deadline = inf, self._logs.reading_deadline()
        while left := self._count_unfolded(call):
            if left < before:
                deadline.restart()
            elif deadline.passed():
                raise BrokerUnavailable(
                    f"{left:,} offsets of seal logs were not read within {deadline.timeout_s} s"
                )
            before = left
            if not (reads and self._follow(SLICE_S)):
                with self._lock:
                    self._lock.wait(SLICE_S)

    def is_owner(self, call: Call[Any], deadline: Deadline) -> bool:
        """As ``SamplerLogs.is_owner``, with the lock.

        Raises:
            AskFirst: it is not known, and the call does not wait for groups yet.
        """
        if call.asked or call.shortage is not None or self._logs.knows_to_own(call.number):
            return self._logs.is_owner(call.number, deadline)
        raise AskFirst

    def check_folded(self, call: Call[Any]) -> None:
        """With the lock of an owner; ``AskFirst`` where the call is to see more than is folded."""
        if call.command.to_the_ends and (call.ends is None or self._logs.count_unfolded(call.ends)):
            raise AskFirst

    def _check(self) -> None:
        self._logs.ownership.check()

    def _count_unfolded(self, call: Call[Any]) -> int:
        with self._lock:
            if not self._logs.claimed or call.ends is None:
                return 0  # Then the call itself reads all.
            return self._logs.count_unfolded(call.ends)
