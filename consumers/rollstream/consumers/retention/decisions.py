"""The samplers of a deployment, as sealers see them: who is registered, and what they decided."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from rollstream.folds.choosing import choosing_of
from rollstream.folds.state import SamplerState
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.errors import RollstreamError
from rollstream.status.decided import NEVER, DecisionFold, DecisionLog
from rollstream.streams.broker import Broker
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.root import StoreRoot


class UnregisteredSampler(RollstreamError):
    """A sampler has a decision log and the configuration does not name it, so it is not known what
    it still needs."""


class NoSampler(RollstreamError):
    """No sampler draws from the environment, so nobody says what is done with."""


class DecisionLogs:
    """The decision logs of samplers, folded as far as they were read; each is read once, however
    many environments its sampler draws from, and from a hint on where the root has one.

    A sampler is registered for an environment where ``[samplers.*]`` names it. Not shared between
    threads.

    Args:
        config: of the process that decides what is retired.
        root: of the store; None: no hint is used, and none left.
    """

    def __init__(
        self, config: RollstreamConfig, broker: Broker, root: StoreRoot | None = None
    ) -> None:
        self._config = config
        self._root = root
        self._broker = broker
        self._layout = Layout.of(config.kafka)
        self._read: dict[str, DecisionLog] = {}

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
        for log in self._read.values():
            with suppress(RollstreamError):
                log.close()
        self._read.clear()

    def _decisions(self, name: str, deadline: Deadline) -> SamplerState:
        log = self._read[name] = self._read.get(name) or self._opened(name)
        try:
            log.read(deadline, answers_within_s=self._answer_s(deadline))
        except BrokerUnavailable:
            raise
        except BaseException:
            del self._read[name]  # What it has folded may be half of an event.
            log.close()
            raise
        return log.fold.state

    def _answer_s(self, deadline: Deadline) -> float:
        """For one answer of the broker, so that a long deadline does not hide that none comes."""
        return deadline.slice_s(self._config.kafka.timeout_s)

    def _opened(self, name: str) -> DecisionLog:
        environments = self._config.environments
        sampler = self._config.samplers[name]
        partitions = {one: environments[one].partitions for one in sampler.environments}
        # Seal logs are not read: decisions name groups by their offsets.
        starts = dict.fromkeys(self._layout.addresses(partitions), NEVER)
        where, root = self._layout.sampler_log(name), self._root
        hint = None if root is None else root.followed.decisions(name, where.topic, "retention")
        fold = DecisionFold(name, choosing_of(sampler, environments), starts)
        root_id = "" if root is None else root.root_id
        return DecisionLog(self._broker, where, fold, hint, root_id)
