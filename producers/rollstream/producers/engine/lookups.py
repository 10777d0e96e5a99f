"""Asks the broker for topics, so that no call and no record waits for its answer."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rollstream.producers.engine.topics import Topics
from rollstream.runtime.clock import SystemClock
from rollstream.streams.broker import Writer
from rollstream.streams.errors import BrokerError

_AGAIN_S = 0.05  # Until a broker that did not answer is asked again.


class Lookups:
    """A thread that is there while a topic is asked for.

    Args:
        lock: held while ``topics`` is used.
        wanted: whether answers are wanted still; called with the lock held.
        found: takes each answer; whether the topic is to be asked for again.
        died: takes what ended the thread, if that was no answer.
    """

    def __init__(
        self,
        writer: Writer,
        lock: threading.Lock,
        topics: Topics,
        wanted: Callable[[], bool],
        found: Callable[[str, int | BrokerError], bool],
        died: Callable[[BaseException], None],
    ) -> None:
        self._writer = writer
        self._lock = lock
        self._topics = topics
        self._wanted = wanted
        self._found = found
        self._died = died
        self._asks = False  # Whether the thread is there.

    def begin(self) -> None:
        """A topic is asked for; callers hold the lock."""
        if not self._asks:
            self._asks = True
            threading.Thread(target=self._run, name="rollstream-lookups", daemon=True).start()

    def _run(self) -> None:
        try:
            while (question := self._question()) is not None:
                topic, timeout_s = question
                found: int | BrokerError
                try:
                    found = self._writer.partitions(topic, timeout_s)
                except BrokerError as error:
                    found = error
                if self._found(topic, found):
                    SystemClock().wait(threading.Event(), _AGAIN_S)
        except Exception as error:  # noqa: BLE001, whatever it is, the next call raises it
            self._died(error)

    def _question(self) -> tuple[str, float] | None:
        with self._lock:
            found = self._topics.next_question() if self._wanted() else None
            self._asks = found is not None
        return found
