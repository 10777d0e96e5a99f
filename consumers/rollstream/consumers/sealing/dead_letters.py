"""What could not be read, kept for people: bytes, reason, and where they stood."""

from __future__ import annotations

import logging
from collections import deque

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

LETTERS_MAX = 10_000  # Not delivered yet; `write` waits for the broker beyond.
_SLICE_S = 0.1
_log = logging.getLogger("rollstream.sealer")


class DeadLetters:
    """Writes letters, each at least once: an offset is settled as unreadable only after
    ``deliver`` returned, and one that was not settled is read, and written, again."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._broker = broker
        self._topic = topic
        self._writer: Writer | None = None
        self._letters: deque[tuple[bytes, bytes]] = deque()
        self.written = 0
        """How many were delivered."""

    def write(self, record: Record, error: UnreadableEvent, deadline: Deadline) -> None:
        """Keeps the letter until ``deliver``.

        Raises:
            BrokerUnavailable: too many wait, and the broker did not take them in time.
        """
        where = f"{record.topic}[{record.partition}] at {record.offset}"
        _log.warning("%s cannot be read and becomes a dead letter: %s", where, error)
        letter = DeadLetter(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            timestamp_ts=record.timestamp_us,
            reason=error.reason,
            detail=error.detail,
            key=record.key,
            value=record.value,
        )
        key = f"{record.topic}/{record.partition}".encode()
        self._letters.append((key, codec.encode(letter)))
        if len(self._letters) >= LETTERS_MAX:
            self.deliver(deadline)

    def deliver(self, deadline: Deadline) -> None:
        """Returns once every letter is in the log.

        Raises:
            BrokerUnavailable: not within the deadline. PermanentBrokerError.
        """
        while self._letters:
            self._deliver_all(deadline)
            if self._letters and deadline.passed():
                raise BrokerUnavailable(
                    f"{len(self._letters)} dead letters not delivered to {self._topic} within "
                    f"{deadline.timeout_s} s; what they settle waits for them"
                )
            deadline.say(lambda: f"{len(self._letters)} dead letters to reach {self._topic}")

    def close(self) -> None:
        """Idempotent; letters that were not delivered are written again by the next reader."""
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None

    def _deliver_all(self, deadline: Deadline) -> None:
        if self._writer is None:
            self._writer = self._broker.writer()
        reports: list[Delivery] = []
        sent: list[tuple[bytes, bytes]] = []
        refused: BrokerError | None = None
        while self._letters and refused is None:
            key, value = self._letters[0]
            try:
                self._writer.append(self._topic, value, key=key, on_delivery=reports.append)
            except RecordTooLarge:
                self._letters[0] = (key, _without_value(value))
                continue
            except BufferFull as error:
                refused = error
                continue
            sent.append(self._letters.popleft())
        while len(reports) < len(sent) and not deadline.passed():
            self._writer.poll(deadline.slice_s(_SLICE_S))
        failed = [report for report in reports if report.error is not None]
        if failed or len(reports) < len(sent):
            # Which of them are in does not matter: a letter may stand there twice.
            self._letters.extendleft(reversed(sent))
            self.close()
            errors = [report.error for report in failed]
            if any(isinstance(error, RecordTooLarge) for error in errors):
                self._letters = deque((k, _without_value(v)) for k, v in self._letters)
            for refusal in errors:
                if isinstance(refusal, RecordTooLarge):
                    continue
                if isinstance(refusal, PermanentBrokerError):
                    raise refusal
        else:
            self.written += len(sent)


def _without_value(letter: bytes) -> bytes:
    event = codec.decode_as(DeadLetter, letter)
    return codec.encode(
        DeadLetter(
            topic=event.topic,
            partition=event.partition,
            offset=event.offset,
            timestamp_ts=event.timestamp_ts,
            reason=event.reason,
            detail=f"{event.detail}; its {len(event.value or b'')} bytes are too many for a letter",
            key=None,
            value=None,
        )
    )
