"""Tries a partition again that was put aside, because an operator asks: in its seal log.

A sealer that put a partition aside writes nothing to it. It looks at what others append to the seal
log, and begins anew with the partition when somebody asks for that. If the log still cannot be
read, the partition is put aside again, and nothing was written.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from rollstream.consumers.asking import UnknownPartition, addresses_of, ask
from rollstream.consumers.sealing.context import SealerContext
from rollstream.consumers.sealing.lost_logs import newest_manifest, require_log_of
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Requested, RequestKind
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import Blobs
from rollstream.streams.broker import EARLIEST, Broker, Record, TopicPartition
from rollstream.streams.errors import BrokerError, CorruptLog, LogLost, UnreadableLog
from rollstream.streams.owned.reading import event_in
from rollstream.streams.reading import bounds_in_time, read_between
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.readable import why_unreadable
from rollstream.streams.troubles import note_in

LOOK_EVERY_S = 10.0
LOOK_S = 5.0  # For one look.
NEWEST_MAX = 8  # Records at the log's end that a look reads: its owner writes nothing meanwhile.
_log = logging.getLogger("rollstream.sealer")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryAnswer:
    """What became of a partition that was put aside.

    Attributes:
        sealed: whether a sealer reads and seals it again.
        detail: why it is not sealed; else empty.
    """

    environment: str
    partition: int
    sealed: bool
    detail: str


def request_retry(
    config: RollstreamConfig,
    broker: Broker,
    store: Blobs,
    *,
    environment: str | None,
    partition: int | None,
    deadline: Deadline,
) -> list[RetryAnswer]:
    """Asks running sealers to try the partitions again that they put aside; returns what came of
    each, none where no partition is put aside. A log that cannot be read is not written to: its
    partition is named with the reason. Samplers read such a log again by themselves.

    Args:
        environment, partition: only these; None: all.

    Raises:
        UnknownEnvironment, UnknownPartition. BrokerUnavailable: the broker did not answer.
    """
    layout = Layout.of(config.kafka)
    named = addresses_of(config, [] if environment is None else [environment])
    addresses = [one for of in named.values() for one in of]
    if partition is not None:
        addresses = [one for one in addresses if one.partition == partition]
        if not addresses:
            raise UnknownPartition(f"no environment that was named has a partition {partition}")
    aside = _put_aside(broker, layout, addresses, deadline)
    details: dict[PartitionAddress, str] = {}
    for address in aside:
        error = _why_not(broker, store, layout.groups_log(address), address, deadline)
        if error is not None:
            details[address] = f"still cannot be read, and nothing was written: {error}"
    logs = {layout.groups_log(one): one for one in aside if one not in details}
    answers = ask(broker, [*logs], RequestKind.RETRY, deadline) if logs else {}
    silent = [address for where, address in logs.items() if not answers[where].answered]
    if silent:
        since = _put_aside(broker, layout, silent, Deadline(LOOK_S, deadline.clock))
        for address in silent:
            why = since.get(address) or "no sealer has answered; is one running?"
            details[address] = f"asked, and not sealed yet: {why}"
    return [
        RetryAnswer(
            environment=address.environment,
            partition=address.partition,
            sealed=address not in details,
            detail=details.get(address, ""),
        )
        for address in aside
    ]


def _why_not(
    broker: Broker,
    store: Blobs,
    where: TopicPartition,
    address: PartitionAddress,
    deadline: Deadline,
) -> UnreadableLog | None:
    """Why a sealer would put the partition aside again, by its log and the store's manifests."""
    error = why_unreadable(broker, where, deadline)
    if error is not None:
        return error
    try:
        with closing(broker.reader({})) as reader:
            require_log_of(newest_manifest(store, address), reader, where, deadline)
    except (LogLost, CorruptLog) as lost:
        return lost
    return None


def _put_aside(
    broker: Broker, layout: Layout, addresses: list[PartitionAddress], deadline: Deadline
) -> Mapping[PartitionAddress, str]:
    """Those that their sealers say they put aside, each with the reason."""
    found = {}
    for name in dict.fromkeys(one.environment for one in addresses):
        logs = {layout.rollouts_log(one): one for one in addresses if one.environment == name}
        committed = broker.admin().committed(layout.sealer_group(name), logs, deadline.left_s())
        for where, note in committed.items():
            if why := note_in(note.metadata).aside:
                found[logs[where]] = why
    return found


class RetryWatch:
    """Looks for a request at the end of the seal log of a partition that was put aside. Offsets say
    little there: the log may have been replaced by a copy that is shorter.

    Attributes:
        asked: whether somebody asked since the first look.
    """

    def __init__(self, context: SealerContext, where: TopicPartition) -> None:
        self._context = context
        self._where = where
        self._known: frozenset[tuple[int, Requested]] | None = None  # As of the first look.
        self._look_at_s = 0.0
        self.asked = False

    def is_due(self) -> bool:
        """Whether it is time for the next look."""
        return self._context.clock.monotonic_s() >= self._look_at_s

    def look(self) -> None:
        """Reads the newest records; the first look only takes note of the requests there."""
        context = self._context
        self._look_at_s = context.clock.monotonic_s() + LOOK_EVERY_S
        deadline = Deadline(min(LOOK_S, context.timeout_s), context.clock)
        try:
            with closing(context.broker.reader({self._where: EARLIEST})) as reader:
                first, end = bounds_in_time(reader, self._where, deadline)
                start = max(first, end - NEWEST_MAX)
                records = read_between(reader, self._where, start, end, deadline)
                found = frozenset(filter(None, map(_request_in, records)))
        except (BrokerError, UnreadableLog) as error:
            _log.debug("%s: no request was found: %s", self._where, error)
            found = frozenset()
        self.asked = self._known is not None and not found <= self._known
        self._known = found if self._known is None else self._known


def _request_in(record: Record) -> tuple[int, Requested] | None:
    try:
        event = event_in(record)
    except UnreadableLog:
        return None
    if isinstance(event, Requested) and event.kind == RequestKind.RETRY:
        return record.offset, event
    return None
