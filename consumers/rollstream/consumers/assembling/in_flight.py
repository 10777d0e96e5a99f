"""How producers stand with one partition, and what of it is not reported yet. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from rollstream.consumers.assembling.decisions import Plan
from rollstream.consumers.assembling.fitting import that_fit
from rollstream.schemas.events import ProducerInFlight
from rollstream.schemas.ingest.entry import Producer

REPORTED_BYTES_MAX = 1024 * 1024  # Of one report.
# Of a producer of which nothing changed but that it still lives: less than it lets pass before it
# says so again, so that what readers know is at most a second older than that.
REPEAT_AFTER_US = 1_000_000
_EVENT_BYTES = 64  # How one stands.
_FORGET_AFTER_US = 600_000_000
_FORGET_EVERY_US = 60_000_000


class ProducersInFlight:
    """By the entries that were read: what producers said, and which of their groups are open until
    a flush that ends them is committed. Who said nothing for ten minutes and has none is forgotten.

    Attributes:
        complete: whether this owner reported all, lately enough.
        unreported: those that may stand otherwise than was reported.
    """

    def __init__(self) -> None:
        self.complete = False
        self._producers: dict[str, ProducerInFlight] = {}
        self._reported: dict[str, ProducerInFlight] = {}
        self.unreported: dict[str, None] = {}
        self._forgotten_us = 0

    def __bool__(self) -> bool:
        return bool(self._producers)

    def tell(self, producer: Producer, now_us: int) -> None:
        """A producer said how it stands."""
        producer_id, begun, waiting = producer
        known = self._producers.get(producer_id)
        number = 0 if known is None else known.open
        self._set(ProducerInFlight(producer_id, begun, number, waiting, now_us))
        if now_us >= self._forgotten_us + _FORGET_EVERY_US:
            self._forgotten_us = now_us
            self._forget(now_us - _FORGET_AFTER_US)

    def begin(self, producer_id: str, before: str = "") -> str:
        """A producer that said something dispatched a group, which is open for whoever did so last:
        one that did ``before`` may have died. Returns its id."""
        if before:
            self.end(before)
        known = self._producers[producer_id]
        self._set(known._replace(open=known.open + 1))
        return producer_id

    def end(self, producer_id: str) -> None:
        """A group that it dispatched is open no more, or not for it."""
        known = self._producers[producer_id]
        assert known.open > 0, f"{producer_id} has no open group"
        self._set(known._replace(open=known.open - 1))

    def commit(self, plan: Plan) -> None:
        """The plan is in the seal log and confirmed."""
        for decision in plan.decisions:
            if decision.producer_id:
                self.end(decision.producer_id)

    def repeat(self) -> None:
        """All are to be reported again."""
        self.complete = False
        self._reported.clear()
        self.unreported = dict.fromkeys(self._producers)

    def changes(self) -> tuple[ProducerInFlight, ...]:
        """Those whose figures are not those that were reported last; where there are too many, the
        others come after the next ``confirm``."""
        changed = (self._producers[one] for one in self.unreported)
        news = filter(self._is_news, changed)
        return tuple(that_fit(news, _event_bytes, REPORTED_BYTES_MAX))

    def confirm(self, reported: Iterable[ProducerInFlight]) -> None:
        """Readers know this now."""
        self.complete = True
        for one in reported:
            self._reported[one.producer_id] = one
            if self._producers.get(one.producer_id) == one:
                self.unreported.pop(one.producer_id, None)

    def _set(self, one: ProducerInFlight) -> None:
        self._producers[one.producer_id] = one
        self.unreported[one.producer_id] = None

    def _is_news(self, one: ProducerInFlight) -> bool:
        reported = self._reported.get(one.producer_id)
        if reported is None or reported[:-1] != one[:-1]:
            return True
        return one.last_ts - reported.last_ts >= REPEAT_AFTER_US

    def _forget(self, before_us: int) -> None:
        for producer_id, one in list(self._producers.items()):
            if not one.open and one.last_ts < before_us:
                del self._producers[producer_id]
                self._reported.pop(producer_id, None)
                self.unreported.pop(producer_id, None)


def _event_bytes(one: ProducerInFlight) -> int:
    return len(one.producer_id.encode()) + _EVENT_BYTES
