"""Where logs end: one question to the broker for all logs that are asked about meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from math import inf

from rollstream.runtime.clock import Clock
from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import TopicPartition
from rollstream.streams.owned.clients import OwnerClients

TOGETHER_S = 2.0  # For the ends of several logs: the leader of one may be silent.
ALONE_S = 0.5  # For the first question about a log by itself; the next may take twice as long.
ENDS_AT_ONCE = 2  # Questions, each with a reader: one about many logs, one about one log.

_Question = tuple[TopicPartition, "Future[int]"]


class Ends:
    """Asks for the ends of logs beside the loop.

    A silent leader does not hold up others for long: if a question about several logs fails, each
    of them is asked about by itself until it answers, the one with the fewest failures first.

    Any thread may use it.

    Args:
        ask_s: how long a question may take.
    """

    def __init__(self, clients: OwnerClients, askers: Executor, clock: Clock, ask_s: float) -> None:
        self._clients = clients
        self._askers = askers
        self._clock = clock
        self._ask_s = ask_s
        self._lock = threading.Lock()
        self._together: list[_Question] = []
        self._alone: list[_Question] = []
        self._asks = {False: False, True: False}  # Whether a thread asks; True: about one log each.
        self._within_s: dict[TopicPartition, float] = {}  # Of logs that are asked about alone.

    def ask(self, where: TopicPartition) -> Future[int]:
        """Returns the end that the log has after this call. The future may raise as
        ``LogReader.bounds``."""
        end: Future[int] = Future()
        self._put([(where, end)], alone=where in self._within_s)
        return end

    def _put(self, questions: Sequence[_Question], *, alone: bool) -> None:
        with self._lock:
            (self._alone if alone else self._together).extend(questions)
            asks, self._asks[alone] = self._asks[alone], True
        if not asks:
            self._askers.submit(self._ask_all, alone)

    def _ask_all(self, alone: bool) -> None:
        while questions := self._take(alone=alone):
            self._answer(questions)

    def _take(self, *, alone: bool) -> list[_Question]:
        """The next questions; none: this thread ends."""
        with self._lock:
            if alone and self._alone:
                first = min(self._alone, key=lambda one: self._within_s.get(one[0], 0.0))
                self._alone.remove(first)
                return [first]
            taken = [] if alone else self._together
            if taken:
                self._together = []
            else:
                self._asks[alone] = False
            return taken

    def _answer(self, questions: Sequence[_Question]) -> None:
        logs = sorted({where for where, _ in questions})
        first = logs[0]
        within_s = self._within_s.get(first, inf) if len(logs) == 1 else TOGETHER_S
        deadline = Deadline(min(within_s, self._ask_s), self._clock)
        try:
            with self._clients.reader(first, deadline) as reader:
                if len(logs) == 1:
                    bounds = {first: reader.bounds(first, deadline.left_s())}
                else:
                    bounds = dict(reader.all_bounds(logs, deadline.left_s()))
        except Exception as error:  # noqa: BLE001, it is raised where the end is asked for
            if len(logs) > 1:
                self._within_s |= dict.fromkeys(logs, ALONE_S)
                self._put(questions, alone=True)
                return
            self._within_s[first] = 2 * min(self._within_s.get(first, ALONE_S), self._ask_s)
            for _, end in questions:
                end.set_exception(error)
        else:
            for where, end in questions:
                self._within_s.pop(where, None)
                end.set_result(bounds[where][1])
