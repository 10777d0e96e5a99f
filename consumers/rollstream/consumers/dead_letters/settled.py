"""What the seal logs say became of entries that letters are about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.consumers.dead_letters.reading import Source
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Flushed
from rollstream.schemas.reasons import SettleReason
from rollstream.streams.broker import EARLIEST, Broker, TopicPartition
from rollstream.streams.owned.follow import Follower
from rollstream.streams.topics.layout import Layout

SEALED = "sealed"
_NOT_READ = (SettleReason.UNREADABLE, SettleReason.LOST)


class SettledSources(NamedTuple):
    """What became of entries that were asked for.

    Attributes:
        endings: ``SEALED`` or a ``SettleReason``; of those missing nothing is settled.
        told_apart: those in records whose several entries a sealer could tell apart, and so settled
            each by itself.
    """

    endings: Mapping[Source, str]
    told_apart: Collection[Source]

    def sealed_as(self, source: Source, *, whole: bool) -> str:
        """What became of the entry (of its record's entries, where ``whole``) since a sealer could
        read it after all; empty where none could, so that nobody has sealed it."""
        if whole and source in self.told_apart:
            return "that its entries could be read"
        ending = self.endings.get(source, "")
        return "" if ending in _NOT_READ else ending


def settled_sources(
    broker: Broker,
    layout: Layout,
    partitions: Mapping[str, int],
    sources: Collection[Source],
    deadline: Deadline,
) -> SettledSources:
    """Asks the seal logs, each from its beginning, of the logs that the sources stand in. A log
    that is none of these environments' is not asked, so its entries count as not settled.

    Args:
        partitions: how many each environment has.
        deadline: for each answer, however long the logs are.

    Raises:
        BrokerUnavailable: not read in time. NewerEvent, CorruptLog: a seal log holds what this
            version cannot read.
    """
    wanted: defaultdict[TopicPartition, set[Source]] = defaultdict(set)
    for source in sources:
        wanted[TopicPartition(source.topic, source.partition)].add(source)
    endings: dict[Source, str] = {}
    told_apart: set[Source] = set()
    for address in layout.addresses(partitions):
        where = layout.rollouts_log(address)
        asked = {(source.offset, source.entry): source for source in wanted[where]}
        if not asked:
            continue
        offsets = np.array(sorted({offset for offset, _ in asked}), np.int64)
        several: set[int] = set()
        with closing(Follower(broker, {layout.groups_log(address): EARLIEST})) as follower:
            for confirmed in follower.read_to_end(deadline):
                if isinstance(confirmed.event, Flushed):
                    for offset, entry, ending in _endings(confirmed.event, offsets):
                        if (offset, entry) in asked:
                            endings[asked[offset, entry]] = ending
                    touched = confirmed.event.touched
                    told = np.isin(touched.offsets, offsets) & (touched.counts > 1)
                    several.update(touched.offsets[told].tolist())
                deadline.restart()
        told_apart.update(source for source in asked.values() if source.offset in several)
    return SettledSources(endings, told_apart)


def _endings(event: Flushed, wanted: NDArray[np.int64]) -> Iterator[tuple[int, int, str]]:
    """Offset, entry and ending of what the flush settled at the wanted offsets, which rise."""
    parts = [(SEALED, event.segments.offsets, event.segments.entries)]
    parts += [(part.reason, part.offsets, part.entries) for part in event.settled]
    for ending, offsets, numbers in parts:
        here = np.isin(offsets, wanted)
        for offset, entry in zip(offsets[here].tolist(), numbers[here].tolist(), strict=True):
            yield offset, entry, ending
    for ranges in event.unread:
        for first, stop in zip(ranges.firsts.tolist(), ranges.stops.tolist(), strict=True):
            start, end = np.searchsorted(wanted, (first, stop))
            for offset in wanted[start:end].tolist():
                yield offset, 0, ranges.reason
