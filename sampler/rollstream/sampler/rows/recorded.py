"""Final batches that the state no longer holds, from the record: the decision log says which groups
they have, the seal logs where these are."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import groupby
from operator import attrgetter

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
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.errors import OffsetLost, UnknownTopic
from rollstream.streams.folds.refs import GroupRef, ref_of
from rollstream.streams.owned.follow import Follower
from rollstream.streams.owned.reading import event_in
from rollstream.streams.reading import read_between
from rollstream.streams.topics.layout import Layout

READ_TIMEOUT_FACTOR = 4.0  # As with whole logs elsewhere: from a broker that answers.


class RecordedBatches:
    """Reads the decision log once, for where the decisions of steps are, and goes on from there:
    some 100 bytes a step. May be shared between threads, which read in turn.

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
        self._final = -1
        self._offsets: dict[int, list[int]] = {}  # By step: its newest batch, what replaced in it.
        self._follower: Follower | None = None
        self._closed = False

    def batch(self, step: int, trainer_epoch: int) -> tuple[ServedBatch, list[KnownGroup]]:
        """The newest batch of a final step, with its groups; rows are checked when they are read.

        Raises:
            UnknownStep: a log holds it no more.
            BrokerUnavailable: a log was not read in time.
        """
        with self._reading:
            deadline = Deadline(self._timeout_s, self._clock)
            try:
                if self._epoch != trainer_epoch or step > self._final:
                    self._read_on(deadline)
                    self._epoch = trainer_epoch
                offsets = self._offsets.get(step, []) if step <= self._final else []
                served = self._served(offsets, deadline)
                if served is None:
                    raise not_in_record(step, f"{self._where} has no decision for it")
                return served, self._groups(served.all_groups, deadline)
            except (OffsetLost, UnknownTopic) as error:
                raise not_in_record(step, str(error)) from error
            finally:
                if self._closed:
                    self._restart()

    def rows_as_sealed(self, groups: Sequence[KnownGroup]) -> list[Columns]:
        """Of each group what its seal log has of its rows.

        Raises:
            UnknownStep: a log holds it no more. BrokerUnavailable.
        """
        with self._reading:
            deadline = Deadline(self._timeout_s, self._clock)
            try:
                found = {
                    ref: rows_as_sealed(event, ref.index_in_flush)
                    for refs, event in self._flushes([group.ref for group in groups], deadline)
                    for ref in refs
                }
            except (OffsetLost, UnknownTopic) as error:
                raise UnknownStep(f"a seal log does not hold groups any more: {error}") from error
        return [found[group.ref] for group in groups]

    def close(self) -> None:
        """Reads no more; what is being read ends first, and nobody waits for it. Idempotent."""
        self._closed = True
        if self._reading.acquire(blocking=False):
            self._restart()
            self._reading.release()

    def _restart(self) -> None:
        follower, self._follower = self._follower, None
        self._epoch = self._final = -1
        self._offsets.clear()
        if follower is not None:
            follower.close()

    def _read_on(self, deadline: Deadline) -> None:
        """Learns where the decisions are that came since."""
        if self._follower is None:
            self._follower = Follower(self._broker, {self._where: 0})
        try:
            for one in self._follower.read_to_end(deadline):
                match one.event:
                    case BatchServed(step=step):
                        self._offsets[step] = [one.offset]
                    case Replaced(step=step):
                        self._offsets[step].append(one.offset)
                    case Checkpointed(step=step):
                        self._final = max(self._final, step)
                    case Resumed(checkpointed_step=saved, later=later):
                        newest = -1 if saved is None else saved
                        self._final = newest if later == "release" else max(self._final, newest)
        except BaseException:
            self._restart()
            raise

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
        found: dict[GroupRef, KnownGroup] = {}
        for refs, event in self._flushes(map(ref_of, chosen), deadline):
            indexes = [ref.index_in_flush for ref in refs]
            groups = known_groups(refs[0].log, refs[0].offset, event, indexes)
            found.update(zip(refs, groups, strict=True))
        return [found[ref_of(one)]._replace(scores=one.scores) for one in chosen]

    def _flushes(
        self, refs: Iterable[GroupRef], deadline: Deadline
    ) -> Iterator[tuple[list[GroupRef], Flushed]]:
        """The events that sealed these groups, each with those of them that it sealed, rising."""
        for log, of_log in groupby(sorted({*refs}), attrgetter("log")):
            by_offset = {at: [*of] for at, of in groupby(of_log, attrgetter("offset"))}
            where = self._layout._replace(generation=log.generation).groups_log(log)
            for offset, event in self._events(where, [*by_offset], deadline):
                assert isinstance(event, Flushed), f"a group was chosen of {where} at {offset}"
                yield by_offset[offset], event

    def _events(
        self, where: TopicPartition, offsets: Sequence[int], deadline: Deadline
    ) -> Iterator[tuple[int, Event | None]]:
        """Those at these offsets."""
        with closing(self._broker.reader({where: 0})) as reader:
            for offset in offsets:
                for record in read_between(reader, where, offset, offset + 1, deadline):
                    yield offset, event_in(record)
