"""Final batches that the state no longer holds, from the record: the decision log says which groups
they have, the seal logs where these are."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

from rollstream.folds.batches.served import ServedBatch
from rollstream.folds.group.known import KnownGroup, known_groups
from rollstream.runtime.clock import Clock
from rollstream.runtime.deadline import Deadline
from rollstream.sampler.decide.batches.held_batches import not_in_record
from rollstream.sampler.errors import UnknownStep
from rollstream.sampler.rows.as_sealed import rows_as_sealed
from rollstream.schemas.columns import Columns
from rollstream.schemas.events import (
    BatchServed,
    Checkpointed,
    ChosenGroup,
    Event,
    Flushed,
    Replaced,
    Resumed,
)
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.errors import OffsetLost, UnknownTopic
from rollstream.streams.folds.refs import GroupRef, ref_of
from rollstream.streams.owned.follow import Follower
from rollstream.streams.owned.reading import event_in
from rollstream.streams.reading import read_between
from rollstream.streams.topics.layout import Layout

READ_TIMEOUT_FACTOR = 4.0  # As with whole logs elsewhere: from a broker that answers.


class RecordedBatches:
    """Reads the decision log whole once a trainer epoch, for where the decisions of steps are: some
    100 bytes a step. May be shared between threads, which read in turn.

    Args:
        name: of the sampler.
        timeout_s: for a broker to answer.
    """

    def __init__(
        self, broker: Broker, layout: Layout, name: str, clock: Clock, timeout_s: float
    ) -> None:
        self._broker = broker
        self._layout = layout
        self._where = layout.sampler_log(name)
        self._clock = clock
        self._timeout_s = timeout_s * READ_TIMEOUT_FACTOR
        self._reading = threading.Lock()
        # What is final within a trainer epoch stays the newest decision for its step in that one.
        self._epoch = -1
        self._offsets: dict[int, list[int]] = {}

    def batch(self, step: int, trainer_epoch: int) -> tuple[ServedBatch, list[KnownGroup]]:
        """The newest batch of a final step, with its groups; rows are checked when they are read.

        Raises:
            UnknownStep: a log holds it no more.
            BrokerUnavailable: a log was not read in time.
        """
        with self._reading:
            deadline = Deadline(self._timeout_s, self._clock)
            try:
                if self._epoch != trainer_epoch or step not in self._offsets:
                    self._offsets = self._all_offsets(deadline)
                    self._epoch = trainer_epoch
                served = self._served(self._offsets.get(step, []), deadline)
                if served is None:
                    raise not_in_record(step, f"{self._where} has no decision for it")
                return served, self._groups(served.all_groups, deadline)
            except (OffsetLost, UnknownTopic) as error:
                raise not_in_record(step, str(error)) from error

    def rows_as_sealed(self, groups: Sequence[KnownGroup]) -> list[Columns]:
        """Of each group what its seal log has of its rows.

        Raises:
            UnknownStep: a log holds it no more. BrokerUnavailable.
        """
        found = []
        with self._reading:
            deadline = Deadline(self._timeout_s, self._clock)
            for ref in [group.ref for group in groups]:
                where = self._layout._replace(generation=ref.generation).groups_log(ref.log)
                try:
                    ((_, event),) = self._events(where, [ref.offset], deadline)
                except (OffsetLost, UnknownTopic) as error:
                    raise UnknownStep(f"{where} does not hold {ref.offset}: {error}") from error
                assert isinstance(event, Flushed), f"{ref} is none of {where}"
                found.append(rows_as_sealed(event, ref.index_in_flush))
        return found

    def _all_offsets(self, deadline: Deadline) -> dict[int, list[int]]:
        """By final step, its newest batch and the replacements in it."""
        offsets: dict[int, list[int]] = {}
        final = -1
        with closing(Follower(self._broker, {self._where: 0})) as follower:
            for one in follower.read_to_end(deadline):
                match one.event:
                    case BatchServed(step=step):
                        offsets[step] = [one.offset]
                    case Replaced(step=step):
                        offsets[step].append(one.offset)
                    case Checkpointed(step=step):
                        final = max(final, step)
                    case Resumed(checkpointed_step=saved, later=later):
                        newest = -1 if saved is None else saved
                        final = newest if later == "release" else max(final, newest)
        # The batches of others may still change.
        return {step: found for step, found in offsets.items() if step <= final}

    def _served(self, offsets: Sequence[int], deadline: Deadline) -> ServedBatch | None:
        served: ServedBatch | None = None
        for offset, event in self._events(self._where, offsets, deadline):
            if isinstance(event, BatchServed):
                served = ServedBatch.of(event, offset)
            elif served is not None and isinstance(event, Replaced):
                served = served.replaced_by(event, offset)
        return None if served is None else replace(served, final=True)

    def _groups(self, chosen: Sequence[ChosenGroup], deadline: Deadline) -> list[KnownGroup]:
        """In the order of slots."""
        wanted: defaultdict[PartitionAddress, defaultdict[int, set[int]]]
        wanted = defaultdict(lambda: defaultdict(set))
        for ref in map(ref_of, chosen):
            wanted[ref.log][ref.offset].add(ref.index_in_flush)
        found: dict[GroupRef, KnownGroup] = {}
        for log, flushes in wanted.items():
            where = self._layout._replace(generation=log.generation).groups_log(log)
            for offset, event in self._events(where, sorted(flushes), deadline):
                assert isinstance(event, Flushed), f"a group was chosen of {where} at {offset}"
                groups = known_groups(log, offset, event, sorted(flushes[offset]))
                found.update({group.ref: group for group in groups})
        return [found[ref_of(one)]._replace(scores=one.scores) for one in chosen]

    def _events(
        self, where: TopicPartition, offsets: Sequence[int], deadline: Deadline
    ) -> Iterator[tuple[int, Event | None]]:
        """Those at these offsets."""
        with closing(self._broker.reader({where: 0})) as reader:
            for offset in offsets:
                for record in read_between(reader, where, offset, offset + 1, deadline):
                    yield offset, event_in(record)
