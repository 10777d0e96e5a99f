"""What the seal logs say became of entries that letters are about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Event, Flushed
from rollstream.schemas.reasons import SettleReason
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.dead_letters import Source
from rollstream.streams.owned.adoption import find_start
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
    sources: Mapping[Source, int],
    deadline: Deadline,
) -> SettledSources:
    """Asks the seal logs of the logs that the sources stand in, each from about the time of its
    oldest letter until all are known. A log that is none of these environments' is not asked, so
    its entries count as not settled.

    Args:
        partitions: how many each environment has.
        sources: with the log time of a letter of each.
        deadline: for each answer, however long the logs are.

    Raises:
        BrokerUnavailable: not read in time. NewerEvent, CorruptLog: a seal log holds what this
            version cannot read.
    """
    wanted: defaultdict[TopicPartition, list[Source]] = defaultdict(list)
    for source in sources:
        wanted[TopicPartition(source.topic, source.partition)].append(source)
    endings: dict[Source, str] = {}
    told_apart: set[Source] = set()
    for address in layout.addresses(partitions):
        asked = wanted[layout.rollouts_log(address)]
        if not asked:
            continue
        where, since_us = layout.groups_log(address), min(sources[source] for source in asked)
        deadline.restart()
        with closing(broker.reader({where: 0})) as reader:
            start = find_start(reader, where, None, deadline, since_us=since_us)
        # A letter may be younger than what its log says: a stopped owner wrote it late.
        for begin in sorted({start, 0}, reverse=True):
            found = _Endings(asked)
            with closing(Follower(broker, {where: begin})) as follower:
                for confirmed in follower.read_to_end(deadline):
                    found.apply(confirmed.event)
                    if not found.missing:
                        break
                    deadline.restart()
            if all(source.offset >= found.watermark for source in found.missing):
                break
        endings.update(found.endings)
        told_apart.update(source for source in asked if source.offset in found.several)
    return SettledSources(endings, told_apart)


class _Endings:
    """What events of a seal log say of these sources.

    Attributes:
        missing: those of which none says anything.
        several: offsets of records whose entries were told apart.
        watermark: every offset below it is settled.
    """

    def __init__(self, asked: Collection[Source]) -> None:
        self.endings: dict[Source, str] = {}
        self.missing = {*asked}
        self.several: set[int] = set()
        self.watermark = 0
        self._asked = {(source.offset, source.entry): source for source in asked}
        self._offsets = np.array(sorted({source.offset for source in asked}), np.int64)

    def apply(self, event: Event) -> None:
        """The next event that counts."""
        if not isinstance(event, Flushed):
            return
        self.watermark = event.watermark
        for offset, entry, ending in _endings(event, self._offsets):
            if source := self._asked.get((offset, entry)):
                self.endings[source] = ending
                self.missing.discard(source)
        touched = event.touched
        told = np.isin(touched.offsets, self._offsets) & (touched.counts > 1)
        self.several.update(touched.offsets[told].tolist())


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
