"""The samplers of a deployment, as sealers see them: who is registered, and what they decided."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from rollstream.folds.choosing import choosing_of
from rollstream.folds.state import SamplerState
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.broker import Broker
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.owned.follow import Follower
from rollstream.streams.topics.layout import Layout

# Seal logs are not read: the decisions name groups by their offsets, all of them before this.
_NEVER = 1 << 62


class UnregisteredSampler(RollstreamError):
    """A sampler has a decision log and the configuration does not name it, so it is not known what
    it still needs."""


class NoSampler(RollstreamError):
    """No sampler draws from the environment, so nobody says what is done with."""


class DecisionLogs:
    """The decision logs of samplers, folded as far as they were read; each is read once, however
    many environments its sampler draws from.

    A sampler is registered for an environment where ``[samplers.*]`` names it. Not shared between
    threads.

    Args:
        config: of the process that decides what is retired.
    """

    def __init__(self, config: RollstreamConfig, broker: Broker) -> None:
        self._config = config
        self._broker = broker
        self._layout = Layout.of(config.kafka)
        self._read: dict[str, tuple[Follower, SamplerState]] = {}

    def registered(self, environment: str, deadline: Deadline) -> list[str]:
        """The names of the samplers that are registered for it, sorted.

        Raises:
            UnregisteredSampler: there is a decision log of another one. NoSampler: none is
                registered. BrokerUnavailable: not answered by the deadline.
        """
        named = self._config.samplers
        for name in self._layout.sampler_names(self._broker.admin(), self._answer_s(deadline)):
            if name not in named:
                raise UnregisteredSampler(
                    f"sampler {name!r} has a decision log, but this configuration has no "
                    f"[samplers.{name}], so files that it needs could be deleted: add the section, "
                    f"or, where it is gone for good, delete the topic {self._layout.sampler(name)}"
                )
        wanted = [n for n, one in sorted(named.items()) if environment in one.environments]
        if not wanted:
            raise NoSampler(
                f"no [samplers.*] of this configuration names environment {environment!r}, "
                "so it is not known which groups are done with; add the section of its sampler"
            )
        return wanted

    def read(self, environment: str, deadline: Deadline) -> Mapping[str, SamplerState]:
        """The samplers that are registered for it by name, with all that they have decided by now.
        After an error the next call goes on where this one ended.

        Raises:
            UnregisteredSampler, NoSampler, BrokerUnavailable: as ``registered``. UnknownTopic: a
            sampler has no decision log yet. NewerEvent, CorruptLog: a log that cannot be read.
        """
        names = self.registered(environment, deadline)
        return {name: self._decisions(name, deadline) for name in names}

    def close(self) -> None:
        """Idempotent."""
        for follower, _ in self._read.values():
            with suppress(RollstreamError):
                follower.close()
        self._read.clear()

    def _decisions(self, name: str, deadline: Deadline) -> SamplerState:
        if name not in self._read:
            follower = Follower(self._broker, {self._layout.sampler_log(name): 0})
            self._read[name] = follower, self._new_state(name)
        follower, state = self._read[name]
        try:
            events = follower.read_to_end(deadline, ends_within_s=self._answer_s(deadline))
            for _, offset, timestamp_us, event in events:
                state.apply(offset, timestamp_us, event)
        except BrokerUnavailable:
            raise
        except BaseException:
            del self._read[name]  # What it read and did not hand over is read again.
            follower.close()
            raise
        return state

    def _answer_s(self, deadline: Deadline) -> float:
        """For one answer of the broker, so that a long deadline does not hide that none comes."""
        return deadline.slice_s(self._config.kafka.timeout_s)

    def _new_state(self, name: str) -> SamplerState:
        environments = self._config.environments
        sampler = self._config.samplers[name]
        partitions = {one: environments[one].partitions for one in sampler.environments}
        logs: list[PartitionAddress] = self._layout.addresses(partitions)
        state = SamplerState(name, choosing_of(sampler, environments), logs)
        for log in logs:
            state.start_at(log, _NEVER)
        return state
