"""The seal logs that a sampler draws from, all partitions of all its environments."""

from __future__ import annotations

from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.folds.sampler.state import SamplerState
from rollstream.streams.owned.follow import ConfirmedEvent, Follower
from rollstream.streams.topics.layout import Layout

POLL_RECORDS_MAX = 256  # Flushes that are folded between two commands.


def seal_logs_of(name: str, config: RollstreamConfig) -> dict[TopicPartition, PartitionAddress]:
    """The seal logs of the environments that sampler ``name`` serves, with their addresses."""
    layout = Layout(config.kafka.namespace, config.kafka.generation)
    partitions = {
        environment: config.environments[environment].partitions
        for environment in config.samplers[name].environments
    }
    return {layout.groups_log(address): address for address in layout.addresses(partitions)}


class SealLogs:
    """Folds seal logs into a sampler's state: within a partition in the order of offsets, between
    partitions in the order of arrival.

    Attributes:
        addresses: of the logs.
        caught_up: whether they were read to their ends since the last ``close``.
    """

    def __init__(self, broker: Broker, addresses: dict[TopicPartition, PartitionAddress]) -> None:
        self.addresses = addresses
        self.caught_up = False
        self._broker = broker
        self._follower: Follower | None = None

    def catch_up(self, state: SamplerState, deadline: Deadline) -> None:
        """Reads from the beginning to the ends as they stand now, and folds what the state has not
        applied yet.

        Raises:
            BrokerUnavailable: not read in time.
        """
        self.close()
        self._follower = Follower(self._broker, dict.fromkeys(self.addresses, 0))
        for confirmed in self._follower.read_to_end(deadline):
            self._fold(confirmed, state)
        self.caught_up = True

    def fold_next(self, state: SamplerState, timeout_s: float) -> bool:
        """Folds the next events, waiting up to ``timeout_s`` for the first; returns whether there
        were any."""
        assert self._follower is not None, "catch up first"
        events = self._follower.poll(POLL_RECORDS_MAX, timeout_s)
        for confirmed in events:
            self._fold(confirmed, state)
        return bool(events)

    def close(self) -> None:
        """Idempotent."""
        self.caught_up = False
        if self._follower is not None:
            self._follower.close()
            self._follower = None

    def _fold(self, confirmed: ConfirmedEvent, state: SamplerState) -> None:
        address = self.addresses[confirmed.where]
        if confirmed.offset >= state.applied(address):
            state.apply_groups(address, confirmed.offset, confirmed.event)
