"""A question to the broker that is asked beside the loop."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Asked(Generic[T]):
    """Asks once, keeps the answer, and never waits for it.

    Args:
        ask: begins the question, which has a deadline of its own. The answer is not None.
    """

    def __init__(self, ask: Callable[[], Future[T]]) -> None:
        self._ask = ask
        self._future: Future[T] | None = None
        self._answer: T | None = None

    def answer(self) -> T | None:
        """Returns the answer; None: it is not there so far. The first call asks.

        Raises:
            What the question raised; the next call asks again.
        """
        if self._answer is None:
            future = self._future = self._future or self._ask()
            if future.done():
                self._future = None
                self._answer = future.result()
        return self._answer
