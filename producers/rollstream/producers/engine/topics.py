"""The topics of a producer: which partition a key belongs to, and what the broker is asked."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from rollstream.producers.engine.outbox import Address
from rollstream.producers.engine.waits import Wait
from rollstream.producers.errors import IF_NO_TOPIC
from rollstream.runtime.clock import SystemClock
from rollstream.streams.broker import Writer
from rollstream.streams.errors import (
    BrokerError,
    BrokerUnavailable,
    TopicMismatch,
    UnknownTopic,
)
from rollstream.streams.partitioning import partition_of

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

_ASK_S = 0.5  # A broker that is not there is known, and logged, after this long.
_ASK_S_MIN = 0.01
_AGAIN_S = 0.05  # Until a broker that did not answer is asked again.
_KEYS_KEPT = 4_096


@dataclass(eq=False)
class Topics:
    """Topics by name. A thread asks the broker while one is asked for, so that no call and no
    record waits for its answer.

    Whoever uses it holds the lock.

    Args:
        broker: its name, for messages.
        wanted: whether answers are wanted still.
        found: takes each answer, without the lock; whether the topic is to be asked for again.
        died: takes what ended the thread, if that was no answer.

    Attributes:
        partitions: how many each topic has that was asked for, as first read.
        gathered: how many entries were gathered for each so far, those apart that say that the
            producer lives.
        places: of each, which partition a key belongs to.
        mismatches: why some are not published to any more.
        grown: of these, the ones whose gathered entries are not settled so far.
        asked: topics that the broker is asked for, in this order, and the calls that wait for each.
    """

    _broker: str
    _writer: Writer
    _lock: threading.Lock
    _wanted: Callable[[], bool]
    _found: Callable[[str, int | BrokerError], bool]
    _died: Callable[[BaseException], None]
    _asks: bool = False  # Whether the thread is there.
    partitions: dict[str, int] = field(default_factory=dict)
    gathered: Counter[str] = field(default_factory=Counter)
    asked: dict[str, list[Wait]] = field(default_factory=dict)
    places: dict[str, _lru_cache_wrapper[Address]] = field(default_factory=dict)
    mismatches: dict[str, str] = field(default_factory=dict)
    grown: list[str] = field(default_factory=list)

    def know(self, topic: str, count: int) -> None:
        """The topic has so many partitions."""
        # A group's entries come close together.
        self.places[topic] = lru_cache(_KEYS_KEPT)(
            lambda key: (topic, partition_of(key.encode(), count))
        )
        self.partitions[topic] = count

    def mismatch(self, topic: str, found: int) -> None:
        """From now on the topic is not published to: half of its keys would move to partitions
        where nobody expects them."""
        self.grown.append(topic)
        self.mismatches[topic] = (
            f"{topic} has {found} partitions by now and had {self.partitions[topic]} when this "
            "producer began; set partitions of the environment to the number that it has, restart "
            "its sealers, and make a new producer"
        )

    def wrong(self, topic: str) -> TopicMismatch | None:
        """Why the topic is not published to, if so."""
        found = self.mismatches.get(topic)
        return None if found is None else TopicMismatch(found)

    def takes(self, topic: str) -> bool:
        """Whether it is known, and published to."""
        return topic in self.places and topic not in self.mismatches

    def address(self, topic: str, key: str) -> Address:
        """Where entries with this key belong."""
        return self.places[topic](key)

    def ask(self, topic: str, wait: Wait | None) -> None:
        """Asks for the topic, for this call."""
        self.asked.setdefault(topic, []).extend([] if wait is None else [wait])
        if not self._asks:
            self._asks = True
            threading.Thread(target=self._run, name="rollstream-lookups", daemon=True).start()

    def calls(self) -> list[Wait]:
        """Those that wait for any topic."""
        return [wait for waits in self.asked.values() for wait in waits]

    def unknown(self, topic: str) -> UnknownTopic:
        """The broker has no such topic."""
        return UnknownTopic(f"topic {topic} does not exist on {self._broker}; {IF_NO_TOPIC}")

    def unreachable(self, topic: str, timeout_s: float) -> BrokerUnavailable:
        """No broker said in time whether the topic exists."""
        return BrokerUnavailable(
            f"{self._broker} did not say within {timeout_s:g} s whether topic {topic} exists; "
            "check that the broker runs and can be reached from here; nothing was queued"
        )

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
        """The topic to ask for now, and how long the question may take: no call is late by it."""
        with self._lock:
            self._asks = bool(self.asked) and self._wanted()
            if not self._asks:
                return None
            topic, waits = next(iter(self.asked.items()))
            return topic, max(_ASK_S_MIN, min([_ASK_S, *(one.deadline.left_s() for one in waits)]))
