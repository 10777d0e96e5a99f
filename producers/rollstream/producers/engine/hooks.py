"""What the engine asks of its producer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rollstream.producers.engine.outbox import Outgoing
from rollstream.schemas.errors import RollstreamError
from rollstream.streams.broker import Delivery, Headers

if TYPE_CHECKING:
    from rollstream.producers.engine.waits import Wait

IDLE_S = 60.0  # With nothing to do the engine looks once in this time; a call wakes it.


class Encoded(NamedTuple):
    """A record as it is sent."""

    value: bytes
    headers: Headers = ()
    key: bytes | None = None


class Hooks:
    """What a producer does beside sending; called without the engine's lock, on its thread or on
    one that publishes, by one of them at a time. The engine alone calls it: the names begin with an
    underscore, so that a producer's users see none of it."""

    def _encode(self, record: Sequence[Outgoing], partitions: int) -> Encoded:
        """The record of these entries, of a topic of ``partitions``."""
        raise NotImplementedError

    def _notify(self, ended: Sequence[Wait]) -> None:
        """Wakes calls that have ended, on whatever thread ended them."""
        raise NotImplementedError

    def _complete(
        self, topic: str, held: Sequence[Outgoing]
    ) -> dict[Outgoing, RollstreamError] | None:
        """Completes entries that were held, of a topic that is known: those that are wrong, and
        why. None: what completes them is not known so far. It asks nobody.

        Raises:
            BrokerError: it never will be.
        """
        return {}

    def _settled(
        self, record: Sequence[Outgoing], delivery: Delivery | None, error: RollstreamError | None
    ) -> None:
        """These entries are in the log, or why they are, perhaps, not."""

    def _to_tell(self) -> tuple[Iterable[Outgoing], float]:
        """The entries that say now that the producer lives, and in how many seconds to ask next."""
        return (), IDLE_S

    def _looked_around(self) -> None:
        """Once in ``LOOK_AGAIN_S``."""

    def _ended(self, refusal: RollstreamError) -> None:
        """The thread has died, and every call is refused with this."""
