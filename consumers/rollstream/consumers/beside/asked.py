"""A question to the broker that is asked beside the loop."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Asked(Generic[T]):
    """Asks once, keeps the answer, and never waits for it.

    Args:
        askers: run the question; it has a deadline of its own.
        question: returns the answer, which is not None.
    """

    def __init__(self, askers: Executor, question: Callable[[], T]) -> None:
        self._askers = askers
        self._question = question
        self._future: Future[T] | None = None
        self._answer: T | None = None

    def answer(self) -> T | None:
        """Returns the answer; None: it is not there so far. The first call asks.

        Raises:
            What the question raised; the next call asks again.
        """
        if self._answer is None:
            future = self._future = self._future or self._askers.submit(self._question)
            if future.done():
                self._future = None
                self._answer = future.result()
        return self._answer
