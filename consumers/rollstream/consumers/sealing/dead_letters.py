"""Entries that could not be read, kept for people with their reasons and where they stood."""

from __future__ import annotations

import logging
import math
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from rollstream.runtime.clock import Clock
from rollstream.runtime.deadline import Deadline
from rollstream.schemas import codec
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import DeadLetter
from rollstream.streams.broker import Broker, Delivery, Record, Writer
from rollstream.streams.errors import (
    BrokerError,
    BrokerUnavailable,
    BufferFull,
    PermanentBrokerError,
    RecordTooLarge,
)

# Letters not delivered yet, and their bytes; beyond either `write` waits for the broker.
LETTERS_MAX = 10_000
LETTERS_BYTES_MAX = 32 * 1024 * 1024
DELIVER_S = 10.0  # One attempt where too many wait.
LOG_EVERY_S = 60.0  # A flood of letters is one line in this time.
DETAIL_CHARS_MAX = 1_000  # A detail may repeat names and numbers as long as a record.
_SLICE_S = 0.1
_log = logging.getLogger("rollstream.sealer")


class _Delivery(NamedTuple):
    """On its way beside the loop.

    Attributes:
        began_with: how many letters.
        left: those that were not delivered so far. Only the delivery uses it, until it has ended.
    """

    began_with: int
    left: list[DeadLetter]
    ended: Future[None]


class DeadLetters:
    """Writes dead letters, each at least once: an entry is settled as unreadable only after
    ``are_delivered``, and one that was not settled is read again, so its letter is written again.
    Only the loop calls it, and only the loop counts.

    Args:
        askers: deliver beside the loop.

    Attributes:
        written: how many were delivered.
    """

    def __init__(self, broker: Broker, topic: str, clock: Clock, askers: Executor) -> None:
        self._broker = broker
        self._topic = topic
        self._clock = clock
        self._askers = askers
        self._delivering: _Delivery | None = None
        self._unlogged = 0
        self._log_at_s = -math.inf
        self._writer: Writer | None = None
        self._letters: list[DeadLetter] = []
        self._bytes = 0
        self.written = 0

    def write(
        self,
        record: Record,
        entry: int,
        value: bytes | None,
        error: UnreadableEvent,
    ) -> None:
        """Keeps the letter until it is delivered; a long detail is cut. The log has the first, and
        then once a minute how many came.

        Args:
            record: as it was read.
            entry: its number there.
            value: what the letter holds, as ``DeadLetter`` describes it; None: none can read it.

        Raises:
            BrokerUnavailable: too many wait for the broker. PermanentBrokerError: as
                ``are_delivered``.
        """
        if self._are_too_many():
            self._begin_delivery()
            if self._are_too_many():
                raise BrokerUnavailable(
                    f"{len(self._letters)} dead letters wait for {self._topic} to take them"
                )
        detail = error.detail
        if len(detail) > DETAIL_CHARS_MAX:
            detail = f"{detail[:DETAIL_CHARS_MAX]}… (cut; {len(detail)} characters)"
        self._unlogged += 1
        now_s = self._clock.monotonic_s()
        if now_s >= self._log_at_s:
            self._log_at_s = now_s + LOG_EVERY_S
            self._log_count(
                "%s[%d] at %d, entry %d: %s: %s", *record[:3], entry, error.reason, detail
            )
        letter = DeadLetter(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            entry=entry,
            timestamp_ts=record.timestamp_us,
            reason=error.reason,
            detail=detail,
            value=value,
        )
        self._letters.append(letter)
        self._bytes += len(value or b"")
        if self._are_too_many():
            self._begin_delivery()

    def are_delivered(self) -> bool:
        """Whether every letter is in the log; else they are delivered beside the loop.

        Raises:
            PermanentBrokerError, among them RecordTooLarge: the topic does not even take a letter
                without the record's bytes.
        """
        if self._letters:
            self._begin_delivery()
        return not self._letters

    def _deliver(self, left: list[DeadLetter], deadline: Deadline) -> None:
        """Removes from ``left`` what is delivered."""
        deadline.restart()  # It may have waited for a thread.
        while left:
            self._send(left, deadline)
            if left and deadline.passed():
                raise BrokerUnavailable(
                    f"{len(left)} dead letters not delivered to {self._topic} within "
                    f"{deadline.timeout_s} s; what they settle waits for them"
                )

    def close(self) -> None:
        """Idempotent; letters that were not delivered are written again by the next reader."""
        if self._unlogged:
            self._log_count("this sealer stops")
        self._abandon()

    def _log_count(self, about: str, *values: object) -> None:
        _log.warning(
            "%d entries became dead letters since the last such line: " + about,
            self._unlogged,
            *values,
        )
        self._unlogged = 0

    def _abandon(self) -> None:
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None

    def _send(self, left: list[DeadLetter], deadline: Deadline) -> None:
        """Sends as many as the writer has room for, and waits until they are delivered."""
        if self._writer is None:
            self._writer = self._broker.writer()
        errors: dict[int, BrokerError | None] = {}

        def answered(number: int, delivery: Delivery) -> None:
            errors[number] = delivery.error

        for number, letter in enumerate(left):
            key, value = f"{letter.topic}/{letter.partition}".encode(), codec.encode(letter)
            try:
                self._writer.append(
                    self._topic, value, key=key, on_delivery=partial(answered, number)
                )
            except RecordTooLarge as error:
                errors[number] = error
            except BufferFull:
                break
        if self._writer.flush(deadline.left_s()):
            self._abandon()  # Which reports what is left as in doubt: it is written twice, maybe.
        for number, refusal in sorted(errors.items(), reverse=True):
            if refusal is None:
                del left[number]
            elif isinstance(refusal, RecordTooLarge):
                left[number] = _without_bytes(left[number], refusal)
            elif isinstance(refusal, PermanentBrokerError):
                raise refusal
        if not all(isinstance(one, PermanentBrokerError | None) for one in errors.values()):
            deadline.wait(_SLICE_S)  # A broker that refuses at once is not asked all the time.

    def _are_too_many(self) -> bool:
        return len(self._letters) >= LETTERS_MAX or self._bytes >= LETTERS_BYTES_MAX

    def _begin_delivery(self) -> None:
        """Delivers beside the caller; raises what the delivery before ended with, but for an
        outage, which it goes on to wait for."""
        if self._delivering is None:
            left, deadline = [*self._letters], Deadline(DELIVER_S, self._clock)
            ended = self._askers.submit(self._deliver, left, deadline)
            self._delivering = _Delivery(len(self._letters), left, ended)
        count, left, ended = self._delivering
        if ended.done():
            self._delivering = None
            self._letters[:count] = left
            self._bytes = sum(len(letter.value or b"") for letter in self._letters)
            self.written += count - len(left)
            with suppress(BrokerUnavailable):
                ended.result()


def _without_bytes(letter: DeadLetter, error: RecordTooLarge) -> DeadLetter:
    """The letter without its value. Raises ``error`` where it has none already: nothing makes it
    any smaller."""
    if letter.value is None:
        raise error
    detail = f"{letter.detail}; its {len(letter.value)} bytes are too many for a letter"
    return replace(letter, detail=detail, value=None)
