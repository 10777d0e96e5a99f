"""Events that are on their way into owned logs: the loop looks after them, and no worker waits."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, NamedTuple

from rollstream.runtime.clock import Clock
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Event
from rollstream.streams.owned.log import OwnedLog
from rollstream.streams.owned.sending import Ticket


class _OnItsWay(NamedTuple):
    log: OwnedLog[Any]
    ticket: Ticket
    deadline: Deadline
    confirmed: Future[int]


class Appends:
    """Appends events, and has each confirmed once the broker said what became of it. An owner has
    one event on its way at a time, and its log is used by nothing else meanwhile.

    Only the loop calls it.

    Args:
        workers: confirm: that may read the log, where others wrote to it.
        timeout_s: after so long an event without an answer is in doubt.
    """

    def __init__(self, workers: Executor, clock: Clock, timeout_s: float) -> None:
        self._workers = workers
        self._clock = clock
        self._timeout_s = timeout_s
        self._on_its_way: list[_OnItsWay] = []

    def begin(self, log: OwnedLog[Any], event: Event) -> Future[int]:
        """Appends the event. The future has its offset once it is confirmed, or raises as
        ``OwnedLog.append`` and ``wait_confirmed`` do."""
        confirmed: Future[int] = Future()
        confirmed.set_running_or_notify_cancel()
        try:
            ticket = log.append(event)
        except Exception as error:  # noqa: BLE001, it is raised where the result is asked for
            confirmed.set_exception(error)
        else:
            deadline = Deadline(self._timeout_s, self._clock)
            self._on_its_way.append(_OnItsWay(log, ticket, deadline, confirmed))
            self.poll()
        return confirmed

    @property
    def waiting(self) -> bool:
        """Whether any event has no answer so far."""
        return bool(self._on_its_way)

    def poll(self) -> None:
        """Hands on what the broker answered, and what has no answer in time."""
        waiting, self._on_its_way = self._on_its_way, []
        for one in waiting:
            if one.log.is_answered(one.ticket) or one.deadline.passed():
                confirm = partial(one.log.wait_confirmed, one.ticket, one.deadline)
                self._workers.submit(_complete, one.confirmed, confirm)
            else:
                one.deadline.log_waiting(partial(_waits_for, one.log))
                self._on_its_way.append(one)


def _complete(future: Future[int], confirm: partial[int]) -> None:
    try:
        future.set_result(confirm())
    except Exception as error:  # noqa: BLE001, likewise
        future.set_exception(error)


def _waits_for(log: OwnedLog[Any]) -> str:
    return f"{log.where}: a delivery report"
