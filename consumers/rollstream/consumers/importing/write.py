"""Stages groups that a program has in hand, and asks their partitions' owners to append them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from rollstream.consumers.asking import Answer, OwnerAnswer, addresses_of, ask
from rollstream.consumers.importing.staged import (
    COMPRESSIONS,
    ROWS_MAX,
    Compression,
    InvalidGroup,
    StagedGroup,
    encode_staged,
    stage,
)
from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.digest import checksum
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.events import Flushed, RequestKind
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.reasons import SealReason
from rollstream.schemas.records import RolloutGroup
from rollstream.store import Blobs, Followed, create_or_compare, read_root_id
from rollstream.store.bounded import open_bounded
from rollstream.store.layout import staged_path
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.owned.follow import ConfirmedEvent
from rollstream.streams.partitioning import partition_of
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.root import StoreRoot, require_root

TIMEOUT_S = 600.0
STAGED_BYTES_MAX = 32 << 20  # Of one file, which its owner reads whole.
KEPT_BYTES_MAX = 256 << 20  # Of all files that are requested at once, in memory.


class NoDeployment(RollstreamError, ValueError):
    """There is no deployment whose sealers could append groups: a root of files alone has none."""


class ImportUnfinished(RollstreamError):
    """Owners refused groups, or did not answer in time.

    Attributes:
        report: what was imported until then.
    """

    def __init__(self, message: str, report: ImportReport) -> None:
        super().__init__(message)
        self.report = report


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """What became of the groups.

    Attributes:
        imported: groups that samplers are served from now on.
        skipped: groups that were there already, or a rollout of which is in another group.
        details: of each partition that skipped any, why, in words.
    """

    imported: int
    skipped: int
    details: tuple[str, ...] = ()


def write_rollout_groups(
    root: str | Path,
    groups: Iterable[RolloutGroup],
    compression: Compression = "zstd",
    *,
    config: RollstreamConfig | None = None,
    broker: Broker | None = None,
    store: Blobs | None = None,
    clock: Clock | None = None,
    timeout_s: float = TIMEOUT_S,
) -> ImportReport:
    """Makes groups part of the deployment's data, each once by its id: samplers serve them, and the
    audit counts them as ``imported``. You may repeat the call after any failure.

    Sealers must run, since only the owner of a partition appends to its log. A group's id follows
    from its key and its rollouts' uids, whatever ``RolloutGroup.id`` says. A group is skipped if it
    was ever sealed, also if its files are retired by now, or if one of its rollouts is in another
    group or waits for one, as far back as ``dedupe_horizon`` reaches.

    Args:
        root: ``store.root`` of the deployment, ``file:///an/absolute/folder``.
        groups: each names its policy: ``policy_version`` is that of all of its rollouts, or
            ``mixed`` if they share a ``group_uid`` or the environment's ``grouping`` is mixed. They
            are taken one after the other, and only those of one request are kept in memory.
        compression: of the row files: ``none``, ``lz4`` or ``zstd``.
        config: of the deployment. Without one nobody could append the groups.
        broker: instead of the configured one.
        store: instead of what is at ``root``.
        clock: instead of the system's.
        timeout_s: how long the owners may take to answer a request.

    Raises:
        NoDeployment: there is no ``config``.
        InvalidGroup: a group or one of its rollouts breaks a rule. Groups before it may be
            imported.
        UnknownEnvironment: the configuration has no such environment.
        ImportUnfinished: an owner refused, or did not answer in time; its request then stands.
        RootMismatch: the root is not the deployment's.
        BrokerUnavailable: Kafka does not answer.
    """
    if config is None:
        raise NoDeployment(
            f"config is None, and {root} alone has no owner: only sealers append to a data set, by "
            "their logs in Kafka. Give the deployment's config=load_config(...), and run "
            "`rollstream seal`"
        )
    _check(groups, compression)
    clock = clock or SystemClock()
    blobs = store or open_bounded(str(root))
    kafka = config.kafka
    with nullcontext(broker) if broker else KafkaBroker(kafka.bootstrap, kafka.client) as used:
        deadline = Deadline(kafka.timeout_s, clock)
        held = StoreRoot(str(root), read_root_id(blobs), Followed(blobs))
        require_root(used, Layout.of(kafka), config.environments, held, deadline)
        import_ = _Import(config, used, blobs, clock, compression, timeout_s)
        for index, group in enumerate(groups):
            import_.add(index, group)
        import_.finish()
    return import_.report


def _check(groups: object, compression: object) -> None:
    if compression not in COMPRESSIONS:
        raise InvalidGroup("compression", compression, f"give one of {COMPRESSIONS}")
    if not isinstance(groups, Iterable):
        raise InvalidGroup("groups", groups, "give the groups as a list, or one by one")


@dataclass(slots=True)
class _Import:
    """Groups of one call, on their way.

    Attributes:
        staged: by partition, those of the next request; of ``size`` bytes.
    """

    config: RollstreamConfig
    broker: Broker
    blobs: Blobs
    clock: Clock
    compression: str
    timeout_s: float
    report: ImportReport = field(default_factory=lambda: ImportReport(imported=0, skipped=0))
    staged: dict[PartitionAddress, list[StagedGroup]] = field(default_factory=dict)
    rows: Counter[PartitionAddress] = field(default_factory=Counter)
    sizes: Counter[PartitionAddress] = field(default_factory=Counter)

    def add(self, index: int, group: RolloutGroup) -> None:
        """Keeps the group for the next request, and makes it first where that is full."""
        if not isinstance(group, RolloutGroup):
            raise InvalidGroup(f"groups[{index}]", group, "give a RolloutGroup")
        environment = group.environment
        if not isinstance(environment, str):
            raise InvalidGroup(f"groups[{index}].environment", environment, "give a string")
        addresses = addresses_of(self.config, [environment])[environment]
        section = self.config.environments[environment]
        try:
            strict, partitions = section.grouping == "strict", section.partitions
            staged = stage(group, strict=strict, partitions=partitions)
        except InvalidGroup as error:
            at = f"groups[{index}].{error.field}"
            raise InvalidGroup(at, error.value, error.remedy, error.finding) from error
        key = group.rollouts[0].group_uid or group.example_id
        address = addresses[partition_of(key.encode(), partitions)]
        rows, size = len(group.rollouts), staged.size
        if (
            self.rows[address] + rows > ROWS_MAX
            or self.sizes[address] + size > STAGED_BYTES_MAX
            or self.sizes.total() + size > KEPT_BYTES_MAX
        ):
            self.finish()
        self.staged.setdefault(address, []).append(staged)
        self.rows[address] += rows
        self.sizes[address] += size

    def finish(self) -> None:
        """Requests what is kept, and waits for the owners.

        Raises:
            ImportUnfinished, BrokerUnavailable, StoreError.
        """
        layout, asked = Layout.of(self.config.kafka), self.staged
        if not asked:
            return
        paths: dict[TopicPartition, str] = {}
        for address, groups in asked.items():
            data = encode_staged(groups)
            path = staged_path(address, self.clock.now_us(), checksum(data))
            create_or_compare(self.blobs, path, data)
            paths[layout.groups_log(address)] = path
        self.staged = {}
        self.rows.clear()
        self.sizes.clear()
        imported: Counter[TopicPartition] = Counter()

        def see(confirmed: ConfirmedEvent, answer: Answer) -> None:
            event = confirmed.event
            if isinstance(event, Flushed) and event.request == answer.request:
                groups = (one for one in event.groups if one.seal_reason == SealReason.IMPORTED)
                imported[confirmed.where] += sum(1 for _ in groups)

        answers = ask(
            self.broker,
            [*paths],
            RequestKind.IMPORT,
            Deadline(self.timeout_s, self.clock),
            staged=paths,
            compression=self.compression,
            see=see,
        )
        report, unfinished = self.report, []
        for address, groups in asked.items():
            where = layout.groups_log(address)
            answer = OwnerAnswer(**answers[where].told(address))
            done = len(groups) if answer.answered and not answer.refused else imported[where]
            details = (f"{address}: {answer.detail}",) if answer.detail else ()
            report = ImportReport(
                imported=report.imported + imported[where],
                skipped=report.skipped + done - imported[where],
                details=(*report.details, *details),
            )
            if answer.refused:
                unfinished.append(f"{address} was refused: {answer.detail}.")
            elif not answer.answered:
                unfinished.append(
                    f"{address} has no answer within {self.timeout_s:g} s"
                    f"{answer.detail and f': {answer.detail}'}. The request stands, and is carried "
                    "out once a sealer owns the partition (`rollstream seal`)."
                )
        self.report = report
        if unfinished:
            told = f"{report.imported:,} groups were imported. You may repeat the call."
            raise ImportUnfinished(" ".join([*unfinished, told]), report)
