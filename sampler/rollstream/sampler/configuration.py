"""The part of a configuration that concerns one sampler."""

from __future__ import annotations

from collections.abc import Callable

from rollstream.runtime.config.sections import RollstreamConfig, SamplerConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler.arguments import text
from rollstream.sampler.errors import UnknownSampler
from rollstream.schemas.ids import PartitionAddress
from rollstream.store.blobs import Blobs
from rollstream.store.followed import Followed
from rollstream.store.root_id import read_root_id
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.topics.check import require_topics
from rollstream.streams.topics.layout import Layout, off_without
from rollstream.streams.topics.root import StoreRoot, require_root
from rollstream.streams.topics.specs import specs_for


def sampler_config(name: str, config: RollstreamConfig) -> SamplerConfig:
    """The ``[samplers.<name>]`` of a configuration; ``UnknownSampler`` where it has none,
    ``InvalidRequest`` where the name is no text."""
    name = text("name", name)
    if name not in config.samplers:
        raise UnknownSampler(
            f"there is no [samplers.{name}] in the configuration, only {sorted(config.samplers)}; "
            "add the section or correct the name"
        )
    return config.samplers[name]


def partitions_of(name: str, config: RollstreamConfig) -> dict[str, int]:
    """The number of partitions of each environment that a sampler serves."""
    environments = sampler_config(name, config).environments
    return {
        environment: config.environments[environment].partitions for environment in environments
    }


def seal_logs_of(name: str, config: RollstreamConfig) -> dict[TopicPartition, PartitionAddress]:
    """The seal logs of the environments that a sampler serves, with their addresses."""
    return _logs_of(name, config, Layout.groups_log)


def score_logs_of(
    name: str, config: RollstreamConfig, broker: Broker, deadline: Deadline
) -> dict[TopicPartition, PartitionAddress]:
    """The logs of late scores of these environments, with their addresses, of those that have the
    topic: without it there are none.

    Raises:
        BrokerUnavailable, NotAuthorised: the broker's answer, or none in time.
    """
    logs = _logs_of(name, config, Layout.scores_log)
    present = broker.admin().describe({where.topic for where in logs}, deadline.left_s())
    return {where: address for where, address in logs.items() if where.topic in present}


def reports_of(name: str, config: RollstreamConfig) -> dict[TopicPartition, PartitionAddress]:
    """The logs in which sealers report what holds now of these environments, with their
    addresses."""
    return _logs_of(name, config, Layout.reports_log)


def _logs_of(
    name: str, config: RollstreamConfig, log: Callable[[Layout, PartitionAddress], TopicPartition]
) -> dict[TopicPartition, PartitionAddress]:
    layout = Layout.of(config.kafka)
    addresses = layout.addresses(partitions_of(name, config))
    return {log(layout, address): address for address in addresses}


def root_of_deployment(
    name: str, config: RollstreamConfig, broker: Broker, store: Blobs, deadline: Deadline
) -> str:
    """The id of the store's root, once the sampler's topics are as configured and that root is the
    one that its environments' sealers write to.

    Raises:
        TopicMismatch: topics are missing or not as configured. RootMismatch. BrokerUnavailable.
        StoreHangs: the root's id was not read in time.
    """
    admin, layout = broker.admin(), Layout.of(config.kafka)
    environments = partitions_of(name, config)
    admin.reach(deadline.left_s())  # Says at once why no broker can be reached.
    logs = [layout.sampler_log(name), *seal_logs_of(name, config)]
    needed = {where.topic for where in logs}
    specs = specs_for(layout, environments, [name])
    used = [spec for spec in specs if spec.name in needed or off_without(spec.name)]
    require_topics(admin, used, deadline.left_s())
    root = StoreRoot(config.store.root, read_root_id(store), Followed(store))
    require_root(broker, layout, environments, root, deadline)
    return root.root_id
