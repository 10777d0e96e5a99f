"""The part of a configuration that concerns one sampler."""

from __future__ import annotations

from rollstream.runtime.config.sections import RollstreamConfig, SamplerConfig
from rollstream.sampler.errors import UnknownSampler
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.broker import TopicPartition
from rollstream.streams.topics.layout import Layout


def sampler_config(name: str, config: RollstreamConfig) -> SamplerConfig:
    """The ``[samplers.<name>]`` of a configuration; ``UnknownSampler`` where it has none."""
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
    layout = Layout.of(config.kafka)
    addresses = layout.addresses(partitions_of(name, config))
    return {layout.groups_log(address): address for address in addresses}
