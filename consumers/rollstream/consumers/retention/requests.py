"""Asks the owners of seal logs to retire files, and plans the same without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from rollstream.consumers.asking import Answer, OwnerAnswer, addresses_of, ask
from rollstream.consumers.retention.decisions import DecisionLogs
from rollstream.consumers.retention.flushes import plan_partition
from rollstream.consumers.retention.known import KnownFlushes
from rollstream.consumers.retention.limits import RetentionLimits
from rollstream.consumers.retention.plan import HeldGroups
from rollstream.consumers.retention.unneeded import (
    orphans,
    unneeded_batches,
    unneeded_manifests,
)
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import RequestKind
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import Blobs, Followed, read_root_id
from rollstream.streams.broker import Broker
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.root import StoreRoot, require_root


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentPlan:
    """What a request would retire of one environment now.

    Attributes:
        files, bytes: that would be retired; those under ``incomplete/`` too.
        held_files: over a limit, and held back.
        held: by which samplers.
        manifests, batches, orphans: how many files would be deleted that nothing needs: manifests
            and roll-ups, batch files, and row files that no flush names.
    """

    environment: str
    files: int
    bytes: int
    held_files: int
    held: Mapping[str, HeldGroups]
    manifests: int
    batches: int
    orphans: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAnswer(OwnerAnswer):
    """What the owner of a partition answered; ``detail`` says what holds other files back, or why
    no others were retired.

    Attributes:
        files, bytes: that were retired, also where it is ``refused`` after that: they stay so.
    """

    files: int
    bytes: int


def plan_request(
    config: RollstreamConfig,
    broker: Broker,
    blobs: Blobs,
    *,
    limits: RetentionLimits,
    environments: Sequence[str],
    deadline: Deadline,
) -> list[EnvironmentPlan]:
    """What ``request_retention`` would retire now, one an environment. Writes nothing but hints.

    Raises:
        UnregisteredSampler, NoSampler, UnknownEnvironment: as ``request_retention``. RootMismatch:
        the store's root is not the deployment's. BrokerUnavailable, StoreError: logs or manifests
        were not read by the deadline, or cannot be.
    """
    now_us = deadline.clock.now_us()
    plans = []
    by_environment = addresses_of(config, environments)
    root = StoreRoot(config.store.root, read_root_id(blobs), Followed(blobs))
    kafka, layout = config.kafka, Layout.of(config.kafka)
    require_root(broker, layout, by_environment, root, deadline)
    with closing(DecisionLogs(config, broker, root)) as decisions:
        read = {name: decisions.read(name, deadline) for name in by_environment}
    for environment, addresses in by_environment.items():
        samplers = read[environment]
        share = limits.of_partition(len(addresses))
        found = [
            plan_partition(blobs, one, samplers, share, now_us, KnownFlushes(), deadline)
            for one in addresses
        ]
        files = [file for plan in found for file in plan.files]
        held: dict[str, HeldGroups] = {}
        for name, groups in (held for plan in found for held in plan.held.items()):
            held[name] = groups.plus(held.get(name, HeldGroups(0, 0)))
        manifests = [path for one in addresses for path in unneeded_manifests(blobs, one)]
        unnamed = orphans(broker, layout, blobs, addresses, deadline, kafka.timeout_s, set())
        plans.append(
            EnvironmentPlan(
                environment=environment,
                files=len(files),
                bytes=sum(file.size for file in files),
                held_files=sum(plan.held_files for plan in found),
                held=held,
                manifests=len(manifests),
                batches=len(unneeded_batches(blobs, samplers)),
                orphans=len(unnamed),
            )
        )
    return plans


def request_retention(
    config: RollstreamConfig,
    broker: Broker,
    *,
    limits: RetentionLimits,
    environments: Sequence[str],
    deadline: Deadline,
) -> list[PartitionAnswer]:
    """Asks the owner of each partition to retire the files over a limit whose groups every
    registered sampler is done with; returns their answers. A request stands in the log: who owns
    the partition next carries it out where nobody does before the deadline.

    Args:
        environments: which; none: all of the configuration.

    Raises:
        UnregisteredSampler, NoSampler: nothing was asked, as the message says. UnknownEnvironment.
        BrokerUnavailable: the broker did not answer.
    """
    by_environment = addresses_of(config, environments)
    with closing(DecisionLogs(config, broker)) as decisions:
        for environment in by_environment:
            decisions.registered(environment, deadline)
    layout = Layout.of(config.kafka)
    logs = {
        layout.groups_log(address): address
        for addresses in by_environment.values()
        for address in addresses
    }
    given: dict[str, Any] = {
        name: -1 if limit is None else limit for name, limit in limits._asdict().items()
    }
    asked = ask(broker, list(logs), RequestKind.RETAIN, deadline, **given)
    return [_answer(address, asked[where]) for where, address in logs.items()]


def _answer(address: PartitionAddress, answer: Answer) -> PartitionAnswer:
    files = [file for event in answer.events for file in event.files]
    size = sum(file.size for file in files)
    return PartitionAnswer(**answer.told(address), files=len(files), bytes=size)
