"""Where logs end, as the broker is asked by any thread, once for all that ask at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Generic, TypeVar

from rollstream.folds.state import SamplerState
from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import Broker, LogReader, Logs, Offsets
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.owned.lending import Lender
from rollstream.streams.owned.log import OwnedLog
from rollstream.streams.reading import all_bounds_in_time

QUESTIONS = 2  # That are asked at a time.
T = TypeVar("T")


class Ends:
    """Asks for the ends of a sampler's logs. Any thread may ask; the broker is asked once for all
    calls that were begun before the question.

    Args:
        log: the decision log; its owner alone does all else with it.
        sealed: the seal logs.
        scored: the logs of scores, once they are known.
        next_number: as ``SamplerLogs.next_number``.
    """

    def __init__(
        self,
        broker: Broker,
        log: OwnedLog[SamplerState],
        sealed: Logs,
        scored: Logs,
        next_number: Callable[[], int],
    ) -> None:
        self._readers = Lender(partial(broker.reader, {}), QUESTIONS)
        self.serve = self._readers.serve

        def end_of_decisions(reader: LogReader, deadline: Deadline) -> float:
            folded = log.next_offset
            _, end = reader.bounds(log.where, deadline.left_s())
            return end if end >= folded else inf  # It lost records, as its owner finds out.

        def ends_of_sealed(reader: LogReader, deadline: Deadline) -> Offsets:
            bounds = all_bounds_in_time(reader, [*sealed, *scored], deadline).items()
            return {where: end for where, (first, end) in bounds if end > first}

        self.decisions = _Question(self._readers, next_number, end_of_decisions)
        self.sealed = _Question(self._readers, next_number, ends_of_sealed)

    def of_decisions_since(self, number: int) -> float:
        """The end of the decision log at some time after this number was drawn; infinite: nobody
        asked since."""
        end = self.decisions.answered_since(number)
        return inf if end is None else end

    def close(self, deadline: Deadline) -> None:
        """Waits for the questions under way, after which nobody uses the broker; their ``check``
        lets no other one begin."""
        for question in (self.decisions, self.sealed):
            question.wait_asked(deadline)
        self._readers.close()


class _Question(Generic[T]):
    """A question to the broker, and its newest answer."""

    def __init__(
        self,
        readers: Lender,
        next_number: Callable[[], int],
        ask: Callable[[LogReader, Deadline], T],
    ) -> None:
        self._readers = readers
        self._next_number = next_number
        self._ask = ask
        self._asking = threading.Lock()
        self._answered: tuple[int, T] | None = None  # With a number drawn before the question.
        self._failed: tuple[int, Callable[[], Exception]] | None = None  # Drawn after it.

    def answered_since(self, number: int) -> T | None:
        """The newest answer; None: it was not asked since this number was drawn."""
        newest = self._answered
        return newest[1] if newest is not None and newest[0] > number else None

    def wait_asked(self, deadline: Deadline) -> None:
        """Waits until nobody asks."""
        if self._asking.acquire(timeout=deadline.left_s()):
            self._asking.release()

    def ask(self, number: int, deadline: Deadline, check: Callable[[], None]) -> T:
        """Returns an answer to a question that was asked since this number was drawn.

        Args:
            deadline: for another call's question, and then for this call's own.
            check: raises where nothing is to be asked any more.

        Raises:
            BrokerUnavailable: there was none by the deadline, or to another call meanwhile.
        """
        if not self._asking.acquire(timeout=deadline.left_s()):
            raise BrokerUnavailable(
                f"the broker did not say within {deadline.timeout_s} s where logs end"
            )
        try:
            if (known := self.answered_since(number)) is not None:
                return known
            if self._failed is not None and self._failed[0] > number:
                raise self._failed[1]()
            check()
            deadline.restart()  # Or a question that had to wait would fail, and others with it.
            asked_at = self._next_number()
            try:
                with self._readers.lend("no reader was free", deadline) as reader:
                    answer = self._ask(reader, deadline)
            except BrokerUnavailable as error:
                self._failed = self._next_number(), partial(type(error), *error.args)
                raise
            self._answered = asked_at, answer
            return answer
        finally:
            self._asking.release()
