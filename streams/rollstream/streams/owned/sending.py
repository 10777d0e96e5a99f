"""An owner's appends: one on its way at a time."""

from __future__ import annotations

from collections import deque

from rollstream.schemas import codec
from rollstream.schemas.events import Event
from rollstream.streams.broker import Broker, Delivery, TopicPartition, Writer
from rollstream.streams.errors import BrokerError, BufferFull, RecordTooLarge
from rollstream.streams.topics.layout import RECORD_BYTES_MAX

APPENDS_MAX = 10_000  # Appended and not confirmed yet; BufferFull beyond.


class Append:
    """An event on its way, and what the broker said of it."""

    __slots__ = ("delivery", "event", "number", "value")

    def __init__(self, number: int, event: Event) -> None:
        self.number = number
        self.event = event
        self.value = codec.encode(event)
        self.delivery: Delivery | None = None

    def report(self, delivery: Delivery) -> None:
        self.delivery = delivery

    def is_in(self) -> bool:
        """Whether it is known to be in the log."""
        return self.delivery is not None and self.delivery.error is None


class Sending:
    """The next event is handed to the broker once the one before is known to be in the log.

    So of what is appended the log always holds a beginning, and at most one event is in doubt. It
    also makes retries needless, so the writer sends each record once.
    """

    def __init__(self, broker: Broker, where: TopicPartition) -> None:
        self._broker = broker
        self._where = where
        self._writer: Writer | None = None
        self._appends: deque[Append] = deque()  # Not confirmed yet, in order.
        self._unsent: deque[Append] = deque()  # The end of them that was not handed on yet.
        self._sent: Append | None = None
        self.number = 0  # Of the newest append; numbers rise and are never used again.

    def add(self, event: Event) -> int:
        """Queues an event; its number.

        Raises:
            BufferFull, RecordTooLarge: nothing was queued.
        """
        if len(self._appends) >= APPENDS_MAX:
            raise BufferFull(
                f"{self._where}: {APPENDS_MAX} events were not confirmed yet; hear them"
            )
        append = Append(self.number + 1, event)
        if len(append.value) > RECORD_BYTES_MAX:
            raise RecordTooLarge(
                f"{self._where}: {type(event).__name__} of {len(append.value)} bytes; "
                f"the limit is {RECORD_BYTES_MAX}"
            )
        self.number += 1
        self._appends.append(append)
        self._unsent.append(append)
        self._send_next()
        return self.number

    def add_claim(self, event: Event) -> Append:
        """Sends a claim at once; it is not among the appends."""
        assert not self._appends, "what was not confirmed is thrown away before a claim"
        claim = Append(-1, event)
        self._send(claim)
        return claim

    def first(self) -> Append | None:
        """The oldest append that was not confirmed yet."""
        return self._appends[0] if self._appends else None

    def pop_first(self) -> None:
        """It was confirmed."""
        self._appends.popleft()
        self._send_next()

    def poll(self, timeout_s: float = 0.0) -> None:
        """Serves reports and sends what is next."""
        if self._writer is not None:
            self._writer.poll(timeout_s)
            self._send_next()

    def throw_away(self) -> None:
        """The writer and all that was not confirmed: what is on its way is in doubt."""
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
        self._appends.clear()
        self._unsent.clear()
        self._sent = None

    def _send_next(self) -> None:
        if self._unsent and (self._sent is None or self._sent.is_in()):
            self._sent = self._unsent.popleft()
            self._send(self._sent)

    def _send(self, append: Append) -> None:
        if self._writer is None:
            self._writer = self._broker.writer(linger_ms=0.0, retries=False)
        topic, partition = self._where
        try:
            self._writer.append(topic, append.value, partition=partition, on_delivery=append.report)
        except BrokerError as error:  # Answered where the report is looked at, like any other.
            append.report(Delivery(topic, partition, -1, error))
