"""What the seal logs say became of entries that letters are about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Flushed
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

    endings: dict[Source, str]
    told_apart: set[Source]

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
    found = SettledSources({}, set())
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
            watermark, missing = 0, {(one.offset, one.entry): one for one in asked}
            offsets = np.array(sorted({one.offset for one in asked}), np.int64)
            with closing(Follower(broker, {where: begin})) as follower:
                for confirmed in follower.read_to_end(deadline):
                    if not missing:
                        break
                    deadline.restart()
                    if not isinstance(confirmed.event, Flushed):
                        continue
                    watermark = confirmed.event.watermark
                    for offset, entry, ending in _endings(confirmed.event, offsets):
                        if known := missing.pop((offset, entry), None):
                            found.endings[known] = ending
                    touched = confirmed.event.touched
                    apart = {*touched.offsets[touched.counts > 1].tolist()}
                    found.told_apart.update(one for one in asked if one.offset in apart)
            if all(offset >= watermark for offset, _ in missing):
                break
    return found


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
