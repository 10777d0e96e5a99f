"""``SealedGroups``: hands out each sealed group, for verifiers."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Self

import numpy as np

from rollstream.consumers.asking import addresses_of
from rollstream.consumers.positions import Position, Positions
from rollstream.folds.group.known import KnownGroup, known_groups
from rollstream.runtime.clock import Clock
from rollstream.runtime.config.load import configured
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.entropy import SystemEntropy
from rollstream.schemas.digest import row_digests
from rollstream.schemas.events import Event, Flushed, ReaderPosition
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.records import RolloutGroup, records_from
from rollstream.store import Blobs
from rollstream.store.bounded import open_bounded
from rollstream.store.dataset import read_rows
from rollstream.store.errors import BlobMissing, CorruptFile
from rollstream.streams.broker import Broker, Record, TopicPartition
from rollstream.streams.errors import BrokerUnavailable, DamagedRecord, OffsetLost, UnreadableLog
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.owned.reading import event_in
from rollstream.streams.topics.layout import Layout

FLUSHES_MAX = 8  # Records that a poll takes from the broker; they are handed out one by one.
POLL_SLICE_S = 0.1  # A partition that is assigned meanwhile is begun after it.
_log = logging.getLogger("rollstream.sealed_groups")


class SealedGroups:
    """Hands out each sealed group at least once, from the first group that was ever sealed.

    Readers of one name share the partitions, and go on after the groups that were committed under
    that name, however long ago. A group that was not committed is handed out again, perhaps to
    another reader. So score with an ``attempt`` (``ScoreProducer``), ``flush``, and then
    ``commit``. Then no group is left out, and none counts twice, whatever is killed.

    One thread uses it. The reader takes part in no other work and delays nobody. It skips groups
    whose file was deleted or is damaged, with a log message.

    Args:
        name: the name that readers share if they share the work.
        environments: the environments whose groups are read.
        config: the configuration, or the path of its file.
        only_awaiting: leaves out groups that were published with all their rewards.
        broker: a broker in place of the configured one; the caller closes it.
        store: a store in place of the configured one; the caller closes it.
        clock: for tests.

    Attributes:
        aside: seal logs that cannot be read any more, each with the reason. All others are read.

    Raises:
        UnknownEnvironment: the configuration lacks an environment.
        ConfigError: the configuration is wrong.

    Examples:
        >>> with SealedGroups("tests", ["math"], config="rollstream.toml") as groups:
        ...     while True:
        ...         for group in groups.poll(timeout_s=1.0):
        ...             verdicts = {one.rollout_uid: run_tests(one) for one in group.rollouts}
        ...             scores.upsert_scores(group.id, verdicts, attempt="1")
        ...         scores.flush()
        ...         groups.commit()
    """

    def __init__(
        self,
        name: str,
        environments: Sequence[str],
        *,
        config: RollstreamConfig | Path | str,
        only_awaiting: bool = False,
        broker: Broker | None = None,
        store: Blobs | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock
        settings = configured(config)
        layout = Layout.of(settings.kafka)
        addresses_of(settings, environments)  # Each is configured.
        self._generation = layout.generation
        self._environments = {layout.groups(one): one for one in environments}
        self._only_awaiting = only_awaiting
        self._timeout_s = settings.kafka.timeout_s
        self._store = store or open_bounded(settings.store)
        self._own = ExitStack()
        used = broker or self._own.enter_context(
            KafkaBroker(settings.kafka.bootstrap, settings.kafka.client)
        )
        self.aside: dict[TopicPartition, str] = {}
        self._positions: dict[TopicPartition, Position] = {}
        self._taken: deque[Record] = deque()  # By the broker, and not handed out.
        topics = {layout.groups(one): layout.positions(one) for one in environments}
        self._stored = Positions(name, topics, used, SystemEntropy())
        self._own.callback(self._stored.close)
        self._broker, self._group = used, layout.reader_group(name)
        self._reader = used.group_reader(
            self._group, list(self._environments), on_revoked=self._forget
        )
        self._own.callback(self._reader.close)

    def poll(self, timeout_s: float) -> list[RolloutGroup]:
        """Returns the groups of the next flush, with all fields of their rollouts.

        The list is empty if no group came within ``timeout_s``, or if other readers have all
        partitions. After an error, the next call goes on at the same place.

        Args:
            timeout_s: how long to wait for a group.

        Raises:
            BrokerUnavailable, NotAuthorised: Kafka does not answer, or refuses.
            StoreError: the store does not answer.
        """
        deadline = Deadline(timeout_s, self._clock)
        while True:
            if not self._taken:
                self._take(FLUSHES_MAX, deadline.slice_s(POLL_SLICE_S))
                self._begin_assigned()
            groups = self._next_flush()
            if groups or deadline.passed():
                return groups

    def commit(self) -> None:
        """Commits all groups that were handed out: readers of this name do not get them again.

        Groups of partitions that another reader took over meanwhile stay uncommitted.

        Raises:
            BrokerUnavailable, NotAuthorised: Kafka does not answer, or refuses.
        """
        deadline = Deadline(self._timeout_s, self._clock)
        due = {where: due for where, one in self._positions.items() if (due := one.due())}
        positions = {where: self._positions[where] for where in due}
        # First the group: it refuses a reader that lost the partition.
        taken = self._commit_to_group(due, deadline)
        self._stored.store([(positions[one].stored, due[one]) for one in taken], deadline)

    def close(self) -> None:
        """Leaves the readers of this name, and commits nothing. Idempotent."""
        self._own.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _commit_to_group(
        self, due: Mapping[TopicPartition, ReaderPosition], deadline: Deadline
    ) -> list[TopicPartition]:
        """Returns the partitions whose position the group took now, or has already."""
        taken: list[TopicPartition] = []
        sent: dict[TopicPartition, tuple[Position, Future[bool]]] = {}
        for where, wanted in due.items():
            position = self._positions[where]
            if wanted.next_offset <= position.committed:
                taken.append(where)
                continue
            # From a claim on the log can be read: only that one tells which events count.
            metadata = str(wanted.claim_epoch)
            sent[where] = position, self._reader.commit(where, wanted.next_offset, metadata)
        while not all(answer.done() for _, answer in sent.values()):
            if deadline.passed():
                raise BrokerUnavailable(f"commit: no answer within {self._timeout_s} s")
            is_full = len(self._taken) >= FLUSHES_MAX
            if is_full:  # What else comes with the answers is bounded by time.
                deadline.wait(POLL_SLICE_S)
            self._take(1, 0.0 if is_full else deadline.slice_s(POLL_SLICE_S))
        for where, (position, answer) in sent.items():
            if answer.result():
                position.committed = due[where].next_offset
                taken.append(where)
        return taken

    def _take(self, records_max: int, timeout_s: float) -> None:
        """Takes records, in the order in which the broker delivers them."""
        try:
            # First: a partition that is lost within it replaces what was taken.
            taken = self._reader.poll(records_max, timeout_s)
            self._taken.extend(taken)
        except DamagedRecord as error:
            self._put_aside(TopicPartition(*error.where), error)
        except OffsetLost as error:
            where = next(one for one in self._positions if str(one) == error.where)
            if self._positions[where].nonce:  # The stored position is of another log.
                self._begin_again(where)
            else:
                self._put_aside(where, error)

    def _put_aside(self, where: TopicPartition, error: Exception) -> None:
        """The log cannot be read on: nothing more of it is handed out."""
        _log.error("%s is read no more, and all other logs are: %s", where, error)
        self.aside[where] = str(error)
        self._reader.pause(where)
        self._drop_taken(where)

    def _next_flush(self) -> list[RolloutGroup]:
        """The groups of the next one that was taken and has any."""
        while self._taken:
            record = self._taken[0]
            try:
                groups = self._groups_in(record)
            except UnreadableLog as error:
                self._put_aside(_where(record), error)
                continue
            if not self._taken or self._taken[0] is not record:
                continue  # Its log is read from the beginning.
            self._taken.popleft()
            self._positions[_where(record)].next_offset = record.offset + 1
            if groups:
                return groups
        return []

    def _begin_assigned(self) -> None:
        """Begins each new partition where the group or the topic of positions is further ahead."""
        new = self._reader.assigned() - self._positions.keys()
        if not new:
            return
        stored = self._stored.read(new, Deadline(self._timeout_s, self._clock))
        committed = self._broker.admin().committed(self._group, new, self._timeout_s)
        for where in new:
            self._begin(where, Position.furthest(stored[where], committed.get(where)))

    def _begin(self, where: TopicPartition, position: Position) -> None:
        self._positions[where] = position
        self._reader.begin(where, position.begun_at)

    def _begin_again(self, where: TopicPartition) -> None:
        """From the log's beginning, which says all, with the offset of the group."""
        self._drop_taken(where)
        self._begin(where, self._positions[where].from_beginning())

    def _forget(self, where: TopicPartition) -> None:
        self._positions.pop(where, None)
        self.aside.pop(where, None)
        self._drop_taken(where)

    def _groups_in(self, record: Record) -> list[RolloutGroup]:
        where = _where(record)
        position = self._positions[where]
        event = event_in(record, position.fence.owner)
        if position.is_refuted(record, event):
            # Somebody else committed under this name, or the seal log was made anew.
            self._begin_again(where)
            return []
        counts = event is not None and position.fence.admits(record.offset, event)
        if event is None or not counts or record.offset < position.wanted_from:
            return []
        log = PartitionAddress(self._environments[where.topic], self._generation, where.partition)
        return list(self._read(log, record.offset, event))

    def _drop_taken(self, where: TopicPartition) -> None:
        self._taken = deque(one for one in self._taken if _where(one) != where)

    def _read(self, log: PartitionAddress, offset: int, event: Event) -> Iterator[RolloutGroup]:
        if not isinstance(event, Flushed):
            return
        groups = known_groups(log, offset, event)
        wanted = [one for one in groups if not (self._only_awaiting and one.has_rewards)]
        for path in dict.fromkeys(group.file.path for group in wanted):
            of_file = [group for group in wanted if group.file.path == path]
            try:
                yield from self._rows_of(path, of_file)
            except BlobMissing:
                _log.warning("%s was deleted; its %d groups are passed over", path, len(of_file))
            except CorruptFile as error:
                _log.error("%d groups are passed over: %s", len(of_file), error)

    def _rows_of(self, path: str, groups: Sequence[KnownGroup]) -> Iterator[RolloutGroup]:
        ranges = [(group.group.row_start, group.group.rows) for group in groups]
        columns = read_rows(self._store, path, ranges=ranges)
        edges = list(accumulate((rows for _, rows in ranges), initial=0))
        digests = row_digests(columns, edges[:-1])
        for group, digest, span in zip(groups, digests, pairwise(edges), strict=True):
            header = group.group
            if digest != header.digest:
                _log.error("group %s in %s is damaged and passed over", header.group_id, path)
                continue
            records = records_from(columns.only(np.arange(*span)))
            yield RolloutGroup.of(header.group_id, records, group.sealed_ts)


def _where(record: Record) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)
