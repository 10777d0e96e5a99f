"""What producers have begun and is not decided, as the sealers report it. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from rollstream.schemas.events import Event, Flushed, InFlight, ProducerInFlight
from rollstream.schemas.ids import PartitionAddress

SILENT_AFTER_S = 8.0  # Four times as long as a producer that counts ever is silent.
_FORGOTTEN_AFTER_US = 600_000_000  # Long enough that nobody counts it any more.
_FORGET_EVERY_US = 60_000_000


class ProducerStanding(NamedTuple):
    """One producer in one environment.

    Attributes:
        begun: the most groups that it said it had begun.
        open: groups that it dispatched and that are not decided.
        waiting: how many more it waits to begin, as it said last.
    """

    producer_id: str
    begun: int
    open: int
    waiting: int


class InFlightGroups:
    """By the events of the seal logs, each log by itself: the logs may be folded in any
    interleaving. Holds a producer of a log until it was silent there for ten minutes of the log's
    time and has no open groups."""

    def __init__(self) -> None:
        self._producers: dict[PartitionAddress, dict[str, ProducerInFlight]] = {}
        self._told_ts: dict[
            PartitionAddress, int
        ] = {}  # Log time of the newest that told anything.
        self._forgotten_ts: dict[PartitionAddress, int] = {}  # When a log's silent ones were.
        self._ended = Counter[str]()

    def apply(self, log: PartitionAddress, event: Event) -> None:
        """The next event of a seal log that counts."""
        if isinstance(event, InFlight):
            reported = event.producers
        elif isinstance(event, Flushed):
            reported = event.in_flight
            unsealed = sum(len(part.example_ids) for part in event.unsealed)
            self._ended[log.environment] += len(event.groups) + unsealed
        else:
            return
        if isinstance(event, Flushed) and not reported:
            return  # Its owner may still be reading what others told of.
        producers = self._producers.setdefault(log, {})
        told_ts = max((one.last_ts for one in reported), default=event.now_ts)
        self._told_ts[log] = max(self._told_ts.get(log, 0), told_ts, event.now_ts)
        if isinstance(event, InFlight) and event.complete:
            # An earlier owner's figures: what it reported as open ended, or is named here.
            producers.update({name: one._replace(open=0) for name, one in producers.items()})
        for one in reported:
            known = producers.get(one.producer_id, one)
            # A new owner, that reads again what is pending, does not know what was said since.
            newer = one if one.last_ts >= known.last_ts else known._replace(open=one.open)
            producers[one.producer_id] = newer
        if event.now_ts >= self._forgotten_ts.get(log, 0) + _FORGET_EVERY_US:
            self._forgotten_ts[log] = event.now_ts
            self._producers[log] = {
                name: one
                for name, one in producers.items()
                if one.open or event.now_ts - one.last_ts < _FORGOTTEN_AFTER_US
            }

    def ended(self, environment: str) -> int:
        """How many groups of it were sealed, or ended otherwise, of what was folded."""
        return self._ended[environment]

    def standings(
        self, environment: str, now_ts: int, said_since_ts: int = 0
    ) -> list[ProducerStanding]:
        """Of the environment's producers, by id, those that said something, on any partition,
        within ``SILENT_AFTER_S`` before ``now_ts``, log time in microseconds; or before the newest
        event that told of any, where that is earlier: while no sealer tells, nobody is silent.
        Without those whose newest word is older than ``said_since_ts``."""
        # One pass, since a sampler asks several times a second while it decides.
        found: dict[str, tuple[int, int, tuple[int, int, int]]] = {}
        told_ts = 0
        for log, producers in self._producers.items():
            if log.environment != environment:
                continue
            told_ts = max(told_ts, self._told_ts[log])
            for producer_id, begun, is_open, waiting, last_ts in producers.values():
                said = (last_ts, begun, waiting)  # At one time: told apart by what came of it.
                if (known := found.get(producer_id)) is not None:
                    begun, is_open = max(begun, known[0]), is_open + known[1]  # noqa: PLW2901
                    said = max(said, known[2])
                found[producer_id] = begun, is_open, said
        silent_ts = min(now_ts, told_ts) - round(SILENT_AFTER_S * 1e6)
        silent_ts = max(silent_ts, said_since_ts - 1)
        return [
            ProducerStanding(producer_id, begun, is_open, said[2])
            for producer_id, (begun, is_open, said) in sorted(found.items())
            if said[0] > silent_ts
        ]

    def sorted_items(self) -> list[Any]:
        """For a digest."""
        held = [(log, sorted(held.values())) for log, held in self._producers.items()]
        return [sorted(held), *(sorted(of.items()) for of in (self._told_ts, self._forgotten_ts))]
