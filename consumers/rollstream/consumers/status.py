"""Where each partition of an environment stands, and the first stage that is stuck."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.config.sections import EnvironmentConfig, RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Claimed, Flushed
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.adoption import find_start
from rollstream.streams.owned.follow import Follower
from rollstream.streams.topics.layout import Layout

GRACE_S = 10.0  # Beyond every time-out; a sealer that is alive has acted by then.
_SLICE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """One partition, from its logs alone.

    Attributes:
        published: the end of the ingest log.
        watermark: every offset below it is settled.
        unsettled: offsets that nothing settled yet: pending, or not read.
        sealed, groups: so far.
        settled: by reason.
        owner: of the newest claim; empty: nobody ever claimed it.
        newest_flush_ts: broker's time of the newest flush, microseconds; None without any.
        oldest_unsettled_ts: broker's time of the oldest unsettled record; None without any.
    """

    environment: str
    partition: int
    published: int
    watermark: int
    unsettled: int
    sealed: int
    groups: int
    settled: Mapping[str, int]
    owner: str
    newest_flush_ts: int | None
    oldest_unsettled_ts: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """A stage that does not go on, and the likely reason."""

    stage: str
    environment: str
    reason: str


def status(
    config: RollstreamConfig, *, broker: Broker, clock: Clock | None = None
) -> tuple[PartitionStatus, ...]:
    """Every partition of every environment; reads the end of each seal log only.

    Raises:
        BrokerUnavailable: not within ``kafka.timeout_s`` a partition. UnknownTopic.
    """
    clock = clock or SystemClock()
    layout = Layout(config.kafka.namespace, config.kafka.generation)
    return tuple(
        _partition_status(broker, layout, name, section, number, config.kafka.timeout_s, clock)
        for name, section in config.environments.items()
        for number in range(section.partitions)
    )


def first_stuck(
    config: RollstreamConfig, partitions: tuple[PartitionStatus, ...], now_us: int
) -> Stuck | None:
    """The first stage, in the order of the data's way, that does not go on. Pure."""
    for name in config.environments:
        rows = [row for row in partitions if row.environment == name]
        if not any(row.published for row in rows):
            return Stuck(
                stage="producers",
                environment=name,
                reason="nothing was ever published; are env replicas running, and is this the "
                "environment, the namespace and the broker that they publish to?",
            )
    for row in partitions:
        reason = _why_not_sealed(row, config.environments[row.environment], now_us)
        if reason:
            return Stuck(stage="sealers", environment=row.environment, reason=reason)
    return None


def _why_not_sealed(row: PartitionStatus, section: EnvironmentConfig, now_us: int) -> str:
    if row.oldest_unsettled_ts is None:
        return ""
    waits_s = (now_us - row.oldest_unsettled_ts) / 1e6
    if not row.owner and waits_s > GRACE_S:
        return (
            f"partition {row.partition}: {row.unsettled} records wait and no sealer ever claimed "
            "it; start `rollstream seal`"
        )
    if waits_s > section.expire_after_s + GRACE_S:
        return (
            f"partition {row.partition}: the oldest of {row.unsettled} records waits for "
            f"{waits_s:.0f} s, longer than expire_after_s {section.expire_after_s:g}; its last "
            f"owner was {row.owner}: is a sealer running, and can it write to the store?"
        )
    return ""


def _partition_status(
    broker: Broker,
    layout: Layout,
    environment: str,
    section: EnvironmentConfig,
    number: int,
    timeout_s: float,
    clock: Clock,
) -> PartitionStatus:
    deadline = Deadline(timeout_s, clock)
    seal_log = TopicPartition(layout.groups(environment), number)
    reader = broker.reader({seal_log: 0})
    try:
        start = find_start(reader, seal_log, None, deadline)
    finally:
        reader.close()
    fold = SealFold(dedupe_horizon=section.dedupe_horizon)
    owner, newest_flush_ts = "", None
    follower = Follower(broker, {seal_log: start}, clock=clock)
    try:
        for heard in follower.catch_up(deadline.left_s()):
            fold.apply(heard.offset, heard.timestamp_us, heard.event)
            if isinstance(heard.event, Claimed):
                owner = heard.event.owner
            elif isinstance(heard.event, Flushed):
                newest_flush_ts = heard.timestamp_us
    finally:
        follower.close()
    source = TopicPartition(layout.rollouts(environment), number)
    end, oldest_ts = _oldest_unsettled(broker, source, fold.watermark, deadline)
    counts = dict(fold.counts)
    return PartitionStatus(
        environment=environment,
        partition=number,
        published=end,
        watermark=fold.watermark,
        unsettled=max(0, end - fold.watermark - len(fold.settled_above())),
        sealed=counts.pop("sealed", 0),
        groups=counts.pop("groups", 0),
        settled=counts,
        owner=owner,
        newest_flush_ts=newest_flush_ts,
        oldest_unsettled_ts=oldest_ts,
    )


def _oldest_unsettled(
    broker: Broker, source: TopicPartition, watermark: int, deadline: Deadline
) -> tuple[int, int | None]:
    """The end of the log, and the broker's time of the record at the watermark."""
    reader = broker.reader({source: 0})
    try:
        first, end = reader.bounds(source, max(0.001, deadline.left_s()))
        if watermark >= end:
            return end, None
        reader.seek(source, max(first, watermark))
        while not deadline.passed():
            for record in reader.poll(1, deadline.slice_s(_SLICE_S)):
                return end, record.timestamp_us
        return end, None
    finally:
        reader.close()
