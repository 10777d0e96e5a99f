"""Makes a deployment: its topics, and the id of its store's root."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.entropy import Entropy, SystemEntropy
from rollstream.schemas.events import RootRecorded
from rollstream.schemas.ids import PartitionAddress, RootId
from rollstream.store import (
    Blobs,
    Followed,
    create_root_id,
    hand_root_over,
    read_root_id,
)
from rollstream.store.bounded import open_bounded
from rollstream.store.layout import ROOT_ID, manifests_prefix, offset_in
from rollstream.store.probe import require_store
from rollstream.streams.broker import Broker, TopicPartition, TopicSpec
from rollstream.streams.errors import DeliveryUnknown, Fenced, LogLost, RootMismatch
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.owned.log import OwnedLog
from rollstream.streams.topics.create import create_topics
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.lost import WHERE_TO_READ, is_empty, lost_batch
from rollstream.streams.topics.root import (
    CREATOR,
    StoreRoot,
    owner_difference,
    require_root,
    root_differences,
    root_log,
)
from rollstream.streams.topics.specs import specs_for

_DELETED = "the older one is over and its seal logs are lost or deleted"
TRY_AGAIN_S = 0.05  # After a sealer took the log back between this claim and its event.


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """What ``create_deployment`` made.

    Attributes:
        topics: that were missing.
        root_id: of the store's root.
        recorded: environments whose seal log did not name the root before.
    """

    topics: tuple[str, ...]
    root_id: str
    recorded: tuple[str, ...]


def create_deployment(
    config: RollstreamConfig,
    *,
    broker: Broker | None = None,
    store: Blobs | None = None,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
    timeout_s: float | None = None,
) -> Created:
    """Creates missing topics, and gives the store's root its id, once. Repeating it changes
    nothing.

    The id is written to the root, then to the seal log of every environment. Sealers and samplers
    start only over that root. Call it before the first sealer, as ``rollstream topics create``
    does.

    Args:
        config: names topics, root and broker.
        broker: instead of the configured one.
        store: likewise.
        timeout_s: for all of it; None: ``kafka.timeout_s``.

    Raises:
        RootMismatch: the seal logs name another root, or this root or these logs belong to another
            deployment. No topic was made.
        LogLost: a sampler's decision log is missing or empty, and the root holds its batches. No
            topic was made.
        StoreError: the store does not do all that is asked of it (``probe_store``). No topic was
            made.
        BrokerUnavailable, NotAuthorised: the broker's answer, or none.
    """
    kafka = config.kafka
    clock, entropy = clock or SystemClock(), entropy or SystemEntropy()
    deadline = Deadline(kafka.timeout_s if timeout_s is None else timeout_s, clock)
    blobs = store or open_bounded(config.store)
    layout = Layout.of(kafka)
    partitions = {name: section.partitions for name, section in config.environments.items()}
    specs = specs_for(
        layout,
        partitions,
        config.samplers,
        rollouts_retention_hours=kafka.retention_hours,
    )
    with nullcontext(broker) if broker else KafkaBroker(kafka.bootstrap, kafka.client) as used:
        root = StoreRoot(config.store.root, read_root_id(blobs), Followed(blobs))
        present = used.admin().describe([spec.name for spec in specs], deadline.left_s())
        there = [name for name in partitions if layout.groups(name) in present]
        held, root = root, _taken_over(used, layout, root, deadline)
        found = root_differences(used, layout, there, root, deadline)
        for other in found:
            if other.wanted:
                raise RootMismatch(str(other))  # Before anything is made or written.
        if root.root_id and not root.identity.namespace:
            root = _of_named_logs(layout, root, named=len(found) < len(there))
        _check_empty_logs(config, used, blobs, root, present, deadline)
        require_store(blobs, entropy)
        topics = create_topics(used.admin(), specs, deadline.left_s())
        if root != held:
            hand_root_over(blobs, root.identity)
        found = root_differences(used, layout, partitions, root, deadline)
        unnamed = {one.topic for one in found}
        lacking = [e for e in sorted(partitions) if str(root_log(layout, e)) in unnamed]
        recorder = _Recorder(config, layout, used, blobs, entropy, deadline)
        for environment in lacking:
            root = recorder.record(environment, root)
    return Created(topics=tuple(topics), root_id=root.root_id, recorded=tuple(lacking))


@dataclass(frozen=True, slots=True)
class _Recorder:
    config: RollstreamConfig
    layout: Layout
    broker: Broker
    blobs: Blobs
    entropy: Entropy
    deadline: Deadline

    def record(self, environment: str, root: StoreRoot) -> StoreRoot:
        """Appends the root's id to the environment's seal log, under a claim of its own, so that
        only one of two processes which do so at a time succeeds. Gives the root its id first."""
        section = self.config.environments[environment]
        log = OwnedLog(
            self.broker,
            root_log(self.layout, environment),
            owner=CREATOR,
            make_fold=lambda: SealFold(dedupe_horizon=section.dedupe_horizon),
            entropy=self.entropy,
        )
        try:
            while True:
                try:
                    return self._record_once(environment, root, log)
                except (Fenced, DeliveryUnknown) as error:
                    # A sealer of a deployment that runs claims again as soon as it is fenced.
                    if self.deadline.passed():
                        raise
                    self.deadline.log_waiting(partial(str, error))
                    self.deadline.wait(TRY_AGAIN_S)
        finally:
            log.release()

    def _record_once(self, environment: str, root: StoreRoot, log: OwnedLog[SealFold]) -> StoreRoot:
        fold = log.claim(self.deadline)
        if fold.root_id:  # Somebody was faster.
            require_root(self.broker, self.layout, [environment], root, self.deadline)
            return root
        self._check_files(environment, root, fold)
        root = root._replace(identity=create_root_id(self.blobs, self.entropy, *self.layout))
        if other := owner_difference(self.layout, root):  # Somebody else's, since we looked.
            raise RootMismatch(str(other))
        event = RootRecorded(epoch=log.epoch, nonce=log.nonce, root_id=root.root_id, root=root.root)
        log.wait_confirmed(log.append(event), self.deadline)
        return root

    def _check_files(self, environment: str, root: StoreRoot, fold: SealFold) -> None:
        """The root holds manifests of the first partition exactly where its log has settled
        something: else one of them is not this deployment's."""
        where = root_log(self.layout, environment)
        address = PartitionAddress(environment, self.layout.generation, 0)
        has_files = _has_manifests(self.blobs, address)
        if has_files and not fold.settled_count:
            raise _lost(root, address, where)
        if fold.settled_count and not has_files:
            raise RootMismatch(
                f"{where} settles {fold.settled_count} entries, but {root.root} holds no manifest "
                f"of {environment} (generation {address.generation}): a typo in store.root, or a "
                "mount that is missing. Name the root that its sealers write to"
            )


def _taken_over(broker: Broker, layout: Layout, root: StoreRoot, deadline: Deadline) -> StoreRoot:
    """The root as this generation's, where an older one recorded it whose seal logs are lost: none
    of them holds anything, so that none of its processes goes on. Else as it is.

    Raises:
        RootMismatch: another namespace or generation recorded it.
    """
    other = owner_difference(layout, root)
    if other is None:
        return root
    older = Layout(*root.identity[1:])
    if older.namespace == layout.namespace and older.generation < layout.generation:
        admin = broker.admin()
        names = [older.groups(one) for one in older.environment_names(admin, deadline.left_s())]
        logs = [
            TopicPartition(spec.name, partition)
            for spec in admin.describe(names, deadline.left_s()).values()
            for partition in range(spec.partitions)
        ]
        if all(is_empty(broker, log, deadline) for log in logs):
            return _handed_to(layout, root)
        raise RootMismatch(f"{other}. A new generation takes the root over once {_DELETED}")
    raise RootMismatch(str(other))


def _of_named_logs(layout: Layout, root: StoreRoot, *, named: bool) -> StoreRoot:
    """The root as this deployment's, where a version recorded its id that did not say whose it is,
    and a seal log of this deployment names it.

    Raises:
        RootMismatch: none does.
    """
    if named:
        return _handed_to(layout, root)
    raise RootMismatch(
        f"{root}, and {ROOT_ID} does not say whose it is: an older version of Rollstream made it. "
        f"No seal log of namespace {layout.namespace}, generation {layout.generation} names it. "
        "Run `rollstream topics create` with the configuration of the root's deployment, and give "
        "a new deployment a root of its own. If the root's logs are lost, add its namespace and "
        f'generation to {ROOT_ID}: {{"root_id": …, "namespace": …, "generation": …}}'
    )


def _handed_to(layout: Layout, root: StoreRoot) -> StoreRoot:
    return root._replace(identity=RootId(root.root_id, *layout))


def _check_empty_logs(
    config: RollstreamConfig,
    broker: Broker,
    blobs: Blobs,
    root: StoreRoot,
    present: Mapping[str, TopicSpec],
    deadline: Deadline,
) -> None:
    """Where a log is missing or empty, the root may hold nothing that was written after its events:
    else it was lost, or the root is another deployment's."""

    def holds_nothing(log: TopicPartition) -> bool:
        found = present.get(log.topic)
        if found is None:
            return True
        return log.partition < found.partitions and is_empty(broker, log, deadline)

    layout = Layout.of(config.kafka)
    partitions = {name: section.partitions for name, section in config.environments.items()}
    for address in layout.addresses(partitions):
        where = layout.groups_log(address)
        if _has_manifests(blobs, address) and holds_nothing(where):
            raise _lost(root, address, where)
    for name in sorted(config.samplers):
        log, written = layout.sampler_log(name), root.followed.newest_batch(name)
        if written is not None and holds_nothing(log):
            raise LogLost(lost_batch(log, written, (0, 0)))


def _has_manifests(blobs: Blobs, address: PartitionAddress) -> bool:
    found = blobs.list(manifests_prefix(address))
    return any(offset_in(blob.path) is not None for blob in found)


def _lost(root: StoreRoot, address: PartitionAddress, where: TopicPartition) -> RootMismatch:
    return RootMismatch(
        f"{root.root} holds manifests of {address} (generation {address.generation}), but {where} "
        "settles nothing: it is another deployment's root, or the log was lost. Name another "
        f"store.root, or restore the log; if all logs are lost, take a new kafka.generation; "
        f"{WHERE_TO_READ}"
    )
