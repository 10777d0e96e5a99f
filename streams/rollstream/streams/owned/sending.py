"""An owner's appends, sent one at a time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from rollstream.schemas import codec
from rollstream.schemas.events import Claimed, Event
from rollstream.streams.broker import Delivery, TopicPartition
from rollstream.streams.errors import (
    BrokerError,
    BrokerUnavailable,
    BufferFull,
    DeliveryUnknown,
    RecordTooLarge,
)
from rollstream.streams.owned.clients import OwnerClients
from rollstream.streams.topics.layout import RECORD_BYTES_MAX

APPENDS_MAX = 10_000  # Appended and not confirmed yet; BufferFull beyond.


@dataclass(slots=True, eq=False)
class Ticket:
    """One append: the event, and what became of it so far.

    Attributes:
        value: the event, encoded.
        delivery: what the broker reported; None: nothing yet.
        offset: of the event in the log, once it is confirmed; None before.
    """

    event: Event
    value: bytes
    delivery: Delivery | None = None
    offset: int | None = None

    def report(self, delivery: Delivery) -> None:
        """The first report counts: what comes after its owner gave it up is of no interest."""
        self.delivery = self.delivery or delivery


class Sending:
    """Sends an event once the one before it is confirmed.

    So the log always holds a prefix of what is appended, and at most one event is in doubt. It
    also makes retries needless, so each record is sent once.

    Attributes:
        pending: appended and not confirmed, the oldest first; only that one was sent.
    """

    def __init__(self, clients: OwnerClients, where: TopicPartition) -> None:
        self.pending: deque[Ticket] = deque()
        self._clients = clients
        self._where = where

    def add(self, event: Event) -> Ticket:
        """Queues an event.

        Raises:
            BufferFull, RecordTooLarge: nothing was queued.
        """
        if len(self.pending) >= APPENDS_MAX:
            raise BufferFull(
                f"{self._where}: {APPENDS_MAX} events are not confirmed; wait_confirmed makes room"
            )
        ticket = Ticket(event, codec.encode(event))
        if len(ticket.value) > RECORD_BYTES_MAX:
            raise RecordTooLarge(
                f"{self._where}: {type(event).__name__} of {len(ticket.value)} bytes; "
                f"the limit is {RECORD_BYTES_MAX}"
            )
        self.pending.append(ticket)
        if len(self.pending) == 1:
            self._send(ticket)
        return ticket

    def add_claim(self, claim: Claimed) -> Ticket:
        """Sends a claim at once; it never becomes pending, since its owner reads it back."""
        assert not self.pending, "what was not confirmed is thrown away before a claim"
        ticket = Ticket(claim, codec.encode(claim))
        self._send(ticket)
        return ticket

    def confirm_first(self, offset: int) -> None:
        """Removes the oldest, which is in the log at ``offset``, and sends the next."""
        self.pending.popleft().offset = offset
        if self.pending:
            self._send(self.pending[0])

    def poll(self, timeout_s: float = 0.0) -> None:
        """Serves reports; waits up to ``timeout_s`` for the first."""
        self._clients.poll(timeout_s)

    def give_up(self) -> None:
        """Forgets all that is pending; what was sent is in doubt from now on."""
        for ticket in self.pending:
            doubt = DeliveryUnknown(f"{self._where}: it was given up before its report")
            ticket.report(Delivery(*self._where, -1, doubt))
        self.pending.clear()

    def _send(self, ticket: Ticket) -> None:
        error: BrokerError
        try:
            self._clients.append(self._where, ticket.value, ticket.report)
            return
        except BufferFull as full:  # Of what others append: the broker does not take it.
            error = BrokerUnavailable(str(full))
        except BrokerError as refusal:
            error = refusal
        # It is raised where the report is looked at, like any other.
        ticket.report(Delivery(*self._where, -1, error))
