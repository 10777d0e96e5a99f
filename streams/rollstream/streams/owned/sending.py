"""An owner's appends, sent one at a time."""

from __future__ import annotations

from dataclasses import dataclass

from rollstream.schemas import codec
from rollstream.schemas.events import Event
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
    """Sends one event at a time: the next one only once its owner is done with the one before.

    So the log always holds a prefix of what is appended, and at most one event is in doubt. It
    also makes retries needless, so each record is sent once.

    Attributes:
        on_way: what was sent, until its owner is done with it.
    """

    def __init__(self, clients: OwnerClients, where: TopicPartition) -> None:
        self.on_way: Ticket | None = None
        self._clients = clients
        self._where = where

    def send(self, event: Event) -> Ticket:
        """Sends an event. A refusal by the broker is in the ticket, like any other report.

        Raises:
            RecordTooLarge: nothing was sent.
        """
        assert self.on_way is None, f"{self._where}: an event is on its way"
        ticket = Ticket(event, codec.encode(event))
        if len(ticket.value) > RECORD_BYTES_MAX:
            raise RecordTooLarge(
                f"{self._where}: {type(event).__name__} of {len(ticket.value)} bytes; "
                f"the limit is {RECORD_BYTES_MAX}"
            )
        self.on_way = ticket
        try:
            self._clients.append(self._where, ticket.value, ticket.report)
        except BufferFull as full:  # Of what others append: the broker does not take it.
            self._report(ticket, BrokerUnavailable(str(full)))
        except BrokerError as refusal:
            self._report(ticket, refusal)
        return ticket

    def finish(self, ticket: Ticket, offset: int) -> None:
        """The owner found the event in the log, at ``offset``."""
        ticket.offset, self.on_way = offset, None

    def give_up(self) -> None:
        """Forgets what is on its way; it is in doubt from now on."""
        if self.on_way is not None:
            doubt = DeliveryUnknown(f"{self._where}: it was given up before its report")
            self._report(self.on_way, doubt)
            self.on_way = None

    def _report(self, ticket: Ticket, error: BrokerError) -> None:
        ticket.report(Delivery(*self._where, -1, error))
