"""Tells env workers of policies and shares, in a thread, so that no decision waits for it.

What it writes follows from the logs, so nothing is lost with it: the next owner writes it again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal

from rollstream.runtime.clock import SystemClock
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.stepping import StepThread
from rollstream.schemas.codec import decode_as, encode
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import (
    PolicyAnnounced,
    ProducerShare,
    SharesGranted,
    SharesValid,
    share_key,
    share_of,
)
from rollstream.streams.broker import Broker, Delivery, TopicPartition, Writer
from rollstream.streams.compacted import newest_records
from rollstream.streams.errors import PermanentBrokerError, UnknownTopic
from rollstream.streams.partitioning import partition_of
from rollstream.streams.topics.layout import SHARES_PARTITIONS, Layout

REPEAT_S = 20.0  # A record that was lost, or that a zombie wrote over, is there again after this.
# Each partition of the second generation has the policies: so that their bytes do not count, they
# are repeated three times until workers take their trainer for gone.
POLICY_REPEAT_S = 200.0
AGAIN_S = 1.0  # After an error that passes.
ANSWER_S = 10.0
CLOSE_WAIT_S = 2.0
_LINGER_MS = 2.0  # So that the shares of a moment go together.
_REMEDY = "; `rollstream topics create` makes what an older deployment lacks"
_log = logging.getLogger("rollstream.sampler")

Kind = Literal["policy", "shares", "validity"]
Make = Callable[[], PolicyAnnounced | SharesGranted | SharesValid]
"""Makes the record that is to be written now; called by the thread, without any lock."""
_Key = tuple[TopicPartition, bytes]


@dataclass(slots=True, eq=False)
class _Record:
    """What is to stand under a key.

    Attributes:
        due_s: when it is to be written next; 0: it never was.
    """

    make: Make
    every_s: float
    due_s: float = 0.0


class Announcer:
    """Keeps the newest records of a sampler in both generations of ``admission.<env>``, for the
    workers of its environments.

    What is handed in is written at once. All but the shares of single producers is written again
    every ``every_s`` for as long as the sampler has its claim. Nobody who hands in ever waits, or
    gets an error: while no broker can be reached it is tried again, and a topic that is missing, or
    may not be written, is tried again with each repetition; the log says both once. Of shares that
    cannot be written the newest of each producer waits.

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
        self._records: dict[_Key, _Record] = {}
        # What is to be written under producers' keys; None: nothing stands there.
        self._shares: dict[_Key, bytes | None] = {}
        self._lock = threading.Condition()
        self._thread = StepThread(self.step, "rollstream-announcer")
        self._writer: Writer | None = None
        # Topics that were last not written to, and whether that lasts.
        self._failing: dict[str, bool] = {}
        self._closed = False

    def put(self, environment: str, kind: Kind, make: Make, *, every_s: float = REPEAT_S) -> None:
        """From now on this is the newest record of that kind for the environment's workers."""
        with self._lock:
            for key, least_s in self._keys(environment, kind):
                self._records[key] = _Record(make, max(every_s, least_s))
            self._wake()

    def stop(self, environment: str, kind: Kind) -> None:
        """Repeats this record no longer."""
        with self._lock:
            for key, _ in self._keys(environment, kind):
                self._records.pop(key, None)

    def put_shares(self, environment: str, shares: Mapping[str, bytes | None]) -> None:
        """From now on these are the encoded shares of these producers; None: it has none."""
        topic = self._layout.shares(environment)
        with self._lock:
            for producer_id, value in shares.items():
                partition = partition_of(producer_id.encode(), SHARES_PARTITIONS)
                where = TopicPartition(topic, partition)
                self._shares[where, share_key(self._sampler, producer_id)] = value
            if shares:
                self._wake()

    def lacks(self, environment: str) -> bool:
        """Whether the environment's second generation does not exist, or may not be written."""
        return self._failing.get(self._layout.shares(environment), False)

    def shares_written(self, environment: str) -> dict[str, int]:
        """The totals that stand in the log, by producer; empty if the log is missing, or may not be
        read.

        Raises:
            BrokerUnavailable: it was not read in time.
        """
        topic = self._layout.shares(environment)
        logs = [TopicPartition(topic, number) for number in range(SHARES_PARTITIONS)]
        try:
            records = newest_records(self._broker, logs, Deadline(ANSWER_S))
        except UnknownTopic:
            return {}
        except PermanentBrokerError as error:
            _log.warning(
                "the shares of workers that died before sampler %r began stay in %s: %s",
                self._sampler,
                topic,
                error,
            )
            return {}
        totals = {}
        for (_, key), record in records.items():
            of = share_of(key)
            if of is not None and of[0] == self._sampler and record.value:
                with suppress(UnreadableEvent):  # It is written over when the producer's share is.
                    totals[of[1]] = decode_as(ProducerShare, record.value).total
        return totals

    def wait_written(self, timeout_s: float) -> None:
        """Returns once each record that was handed in was written, or could not be."""
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
            records = dict(self._records)
            shares = self._take_shares(has_claim=has_claim)
        due = {
            key: one
            for key, one in records.items()
            if not one.due_s or (has_claim and one.due_s <= now_s)
        }
        try:
            if due or shares:
                self._write(due, shares)
        except Exception as error:  # noqa: BLE001, whatever it is, the next repetition tries again
            self._throw_away()
            for key, one in (due | shares).items():
                self._answered(key, one, error)
        with self._lock:
            self._lock.notify_all()
            is_behind = bool(self._shares)
        if closed:
            self._throw_away()
            return None
        if not has_claim:
            return AGAIN_S
        next_s = min((one.due_s for one in records.values()), default=now_s + REPEAT_S)
        wait_s = max(0.0, next_s - self._clock.monotonic_s())
        return min(wait_s, AGAIN_S) if is_behind else wait_s

    def _keys(self, environment: str, kind: Kind) -> Iterable[tuple[_Key, float]]:
        """Where such a record stands, with how long it is not repeated there at least."""
        key = f"{kind}/{self._sampler}".encode()
        if kind != "validity":
            yield (TopicPartition(self._layout.admission(environment), 0), key), 0.0
        if kind != "shares":
            least_s = POLICY_REPEAT_S if kind == "policy" else 0.0
            topic = self._layout.shares(environment)
            for number in range(SHARES_PARTITIONS):
                yield (TopicPartition(topic, number), key), least_s

    def _wake(self) -> None:
        """Callers hold the lock."""
        if not self._closed:
            self._thread.wake()

    def _take_shares(self, *, has_claim: bool) -> dict[_Key, bytes | None]:
        """Those that can be written now; an owner's that lost its claim are dropped. Callers hold
        the lock."""
        if not has_claim:
            self._shares.clear()
        taken = {k: one for k, one in self._shares.items() if not self._failing.get(k[0].topic)}
        for key in taken:
            del self._shares[key]
        return taken

    def _write(self, due: Mapping[_Key, _Record], shares: Mapping[_Key, bytes | None]) -> None:
        if self._writer is None:
            self._writer = self._broker.writer(linger_ms=_LINGER_MS)

        def answered(key: _Key, one: _Record | bytes | None, delivery: Delivery) -> None:
            self._answered(key, one, delivery.error)

        for key, one in [*due.items(), *shares.items()]:
            value = encode(one.make()) if isinstance(one, _Record) else one
            report = partial(answered, key, one)
            where, name = key
            self._writer.append(
                where.topic, value, key=name, partition=where.partition, on_delivery=report
            )
        if self._writer.flush(ANSWER_S):
            self._throw_away()  # Which reports what is left as in doubt.

    def _answered(self, key: _Key, one: _Record | bytes | None, error: Exception | None) -> None:
        topic = key[0].topic
        lasting = isinstance(error, PermanentBrokerError)
        if isinstance(one, _Record):
            is_done = error is None or lasting
            one.due_s = self._clock.monotonic_s() + (one.every_s if is_done else AGAIN_S)
        elif error is not None:
            with self._lock:  # It may have been written; a newer one is.
                self._shares.setdefault(key, one)
        if error is None:
            if self._failing.pop(topic, None) is not None:
                _log.info("%s is written to again", topic)
            return
        if topic not in self._failing:
            _log.warning(
                "sampler %r cannot tell env workers of policies; it goes on trying: %s: %s%s",
                self._sampler,
                topic,
                error,
                _REMEDY if isinstance(error, UnknownTopic) else "",
            )
        self._failing[topic] = lasting

    def _is_tried(self) -> bool:
        return all(
            one.due_s or where.topic in self._failing for (where, _), one in self._records.items()
        )

    def _throw_away(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abandon()
