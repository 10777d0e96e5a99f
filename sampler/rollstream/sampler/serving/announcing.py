"""Tells env workers of policies, in a thread, so that no decision waits for it.

What it writes says what the decision log holds, so nothing is lost with it: the next owner writes
it again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from rollstream.runtime.clock import SystemClock
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.stepping import StepThread
from rollstream.schemas.codec import encode
from rollstream.schemas.events import PolicyAnnounced, SharesGranted
from rollstream.streams.broker import Broker, Delivery, Writer
from rollstream.streams.errors import PermanentBrokerError, UnknownTopic
from rollstream.streams.topics.layout import Layout

REPEAT_S = 20.0  # A record that was lost, or that a zombie wrote over, is there again after this.
AGAIN_S = 1.0  # After an error that passes.
ANSWER_S = 10.0
CLOSE_WAIT_S = 2.0
_POLL_S = 0.005
_REMEDY = "; `rollstream topics create` makes what an older deployment lacks"
_log = logging.getLogger("rollstream.sampler")

Kind = Literal["policy", "shares"]
Make = Callable[[], PolicyAnnounced | SharesGranted]
"""Makes the record that is to be written now; called by the thread, without any lock."""


@dataclass(slots=True, eq=False)
class _Record:
    """What is to stand under a key.

    Attributes:
        due_s: when it is to be written next; 0: it never was.
    """

    topic: str
    key: bytes
    make: Make
    every_s: float
    due_s: float = 0.0


class Announcer:
    """Keeps the newest records of a sampler in ``admission.<env>`` of its environments.

    What is handed in is written at once, and again every ``every_s`` for as long as the sampler has
    its claim. Nobody who hands in ever waits, or gets an error: while no broker can be reached it
    is tried again, and a topic that is missing, or may not be written, is tried again with each
    repetition; the log says both once.

    Args:
        is_owner: whether the sampler has its claim, as far as it knows; called by the thread.
    """

    def __init__(
        self, broker: Broker, layout: Layout, sampler: str, is_owner: Callable[[], bool]
    ) -> None:
        self._broker = broker
        self._layout = layout
        self._sampler = sampler
        self._is_owner = is_owner
        self._clock = SystemClock()  # Workers' time-outs run by it too, whatever decides.
        self._records: dict[tuple[str, Kind], _Record] = {}
        self._lock = threading.Condition()
        self._thread = StepThread(self.step, "rollstream-announcer")
        self._writer: Writer | None = None
        self._failing: set[str] = set()  # Topics that were last not written to.
        self._closed = False

    def put(self, environment: str, kind: Kind, make: Make, *, every_s: float = REPEAT_S) -> None:
        """From now on this is the newest record of that kind for the environment's workers."""
        key = f"{kind}/{self._sampler}".encode()
        record = _Record(self._layout.admission(environment), key, make, every_s)
        with self._lock:
            self._records[environment, kind] = record
            if not self._closed:
                self._thread.wake()

    def wait_written(self, timeout_s: float) -> None:
        """Returns once all that was handed in was written, or could not be."""
        with self._lock:
            self._lock.wait_for(self._is_tried, timeout_s)

    def close(self) -> None:
        """Ends the thread, once what it never wrote is written, or ``CLOSE_WAIT_S`` have passed.
        Idempotent."""
        with self._lock:
            self._closed = True
        self._thread.join(CLOSE_WAIT_S)

    def step(self) -> float | None:
        """Writes what is due; returns how many seconds the thread may sleep then, None where this
        was closed."""
        closed = self._closed
        has_claim = self._is_owner() and not closed
        now_s = self._clock.monotonic_s()
        with self._lock:
            records = list(self._records.values())
        due = [one for one in records if not one.due_s or (has_claim and one.due_s <= now_s)]
        try:
            if due:
                self._write(due)
        except Exception as error:  # noqa: BLE001, whatever it is, the next repetition tries again
            self._throw_away()
            for one in due:
                self._answered(one, error)
        with self._lock:
            self._lock.notify_all()
        if closed:
            self._throw_away()
            return None
        if not has_claim:
            return AGAIN_S
        next_s = min((one.due_s for one in records), default=now_s + REPEAT_S)
        return max(0.0, next_s - self._clock.monotonic_s())

    def _write(self, due: Sequence[_Record]) -> None:
        if self._writer is None:
            self._writer = self._broker.writer(linger_ms=0.0)
        writer, waiting = self._writer, set(due)

        def answered(record: _Record, delivery: Delivery) -> None:
            waiting.discard(record)
            self._answered(record, delivery.error)

        for one in due:
            value = encode(one.make())
            report = partial(answered, one)
            writer.append(one.topic, value, key=one.key, partition=0, on_delivery=report)
        deadline = Deadline(ANSWER_S)
        while True:
            writer.poll(0.0)
            if not waiting:
                return
            if deadline.passed():
                return self._throw_away()  # Which reports what waits as in doubt.
            deadline.wait(_POLL_S)

    def _answered(self, record: _Record, error: Exception | None) -> None:
        now_s = self._clock.monotonic_s()
        lasting = error is None or isinstance(error, PermanentBrokerError)
        record.due_s = now_s + (record.every_s if lasting else AGAIN_S)
        if error is not None and record.topic not in self._failing:
            self._failing.add(record.topic)
            _log.warning(
                "sampler %r cannot tell env workers of policies; it goes on trying: %s: %s%s",
                self._sampler,
                record.topic,
                error,
                _REMEDY if isinstance(error, UnknownTopic) else "",
            )
        elif error is None and record.topic in self._failing:
            self._failing.discard(record.topic)
            _log.info("%s is written to again", record.topic)

    def _is_tried(self) -> bool:
        return all(one.due_s or one.topic in self._failing for one in self._records.values())

    def _throw_away(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abandon()
