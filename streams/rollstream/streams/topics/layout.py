"""What each topic is called: ``<namespace>.<log>.<name>.<generation>``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from rollstream.schemas.errors import WrongValue
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.broker import Admin, TopicPartition

if TYPE_CHECKING:  # Producers name topics too, and install no pydantic.
    from rollstream.runtime.config.sections import KafkaConfig

DEFAULT_NAMESPACE = "rollstream"
SHARES_PARTITIONS = 16  # Of 10,000 workers each reads what concerns 625.
RECORD_BYTES_MAX = 16 * 1024 * 1024  # The largest rollout or flush event that a topic takes.
# What came with a later version, so that a deployment may lack it, and what is off where it does.
_OFF_WITHOUT = {
    "admission": "env workers learn of no policy, and nothing keeps them from running ahead",
    "admission-2": "each env worker reads what all of them may begin",
    "reports": "nothing keeps env workers from running ahead",
    "scores": "late scores reach no sampler",
    "positions": "verifiers that pause for 7 days begin again with the first group",
}
_SECOND = "-2"
_NAME = re.compile(r"[A-Za-z0-9_-]+")  # No dot: it delimits, so that `math.` never grants `math2`.


class BadName(WrongValue):
    """The name of an environment, sampler or namespace cannot be part of a topic's."""


def shares_topic(admission: str) -> str:
    """The second generation of a topic ``admission.<env>``."""
    return admission + _SECOND


def off_without(topic: str) -> str:
    """What is off in a deployment that lacks this topic; empty: nothing works without it."""
    log = topic.split(".")[1]
    return _OFF_WITHOUT.get(log + _SECOND if topic.endswith(_SECOND) else log, "")


def used_by_readers_alone(topic: str) -> bool:
    """Whether only readers of sealed groups use this topic: sealers and samplers need no right on
    it."""
    return topic.split(".")[1] == "positions"


class Layout(NamedTuple):
    """Names the topics of one deployment."""

    namespace: str = DEFAULT_NAMESPACE
    generation: int = 1

    @classmethod
    def of(cls, kafka: KafkaConfig) -> Layout:
        """The names that a configuration gives."""
        return cls(kafka.namespace, kafka.generation)

    def rollouts(self, environment: str) -> str:
        """The ingest log."""
        return self._name("rollouts", environment)

    def groups(self, environment: str) -> str:
        """The seal log: partition p is decided by whoever owns partition p of the ingest log."""
        return self._name("groups", environment)

    def sampler(self, name: str) -> str:
        """The decision log of one sampler."""
        return self._name("sampler", name)

    def sampler_names(self, admin: Admin, timeout_s: float) -> list[str]:
        """The samplers that have a decision log, configured or not.

        Raises:
            BrokerUnavailable, NotAuthorised: the broker's answer, or none in time.
        """
        return self._names("sampler", admin, timeout_s)

    def environment_names(self, admin: Admin, timeout_s: float) -> list[str]:
        """The environments that have a seal log, configured or not; raises as ``sampler_names``."""
        return self._names("groups", admin, timeout_s)

    def addresses(self, environments: Mapping[str, int]) -> list[PartitionAddress]:
        """Every partition of these environments (name to number of partitions), sorted."""
        return [
            PartitionAddress(environment, self.generation, number)
            for environment, partitions in sorted(environments.items())
            for number in range(partitions)
        ]

    def rollouts_log(self, address: PartitionAddress) -> TopicPartition:
        """The ingest log of one partition of an environment."""
        return self._log(self.rollouts(address.environment), address)

    def groups_log(self, address: PartitionAddress) -> TopicPartition:
        """The seal log of one partition of an environment."""
        return self._log(self.groups(address.environment), address)

    def reports(self, environment: str) -> str:
        """What the owner of each partition of the seal log reports of now."""
        return self._name("reports", environment)

    def reports_log(self, address: PartitionAddress) -> TopicPartition:
        """The reports of one partition of an environment."""
        return self._log(self.reports(address.environment), address)

    def sampler_log(self, name: str) -> TopicPartition:
        """The decision log of one sampler, which has a single partition."""
        return TopicPartition(self.sampler(name), 0)

    def admission(self, environment: str) -> str:
        """The first generation of what env workers are told: the newest policies, and how many
        groups each of them may begin. One partition."""
        return self._name("admission", environment)

    def shares(self, environment: str) -> str:
        """The second generation of ``admission``: ``SHARES_PARTITIONS`` partitions, each complete
        in itself. A worker reads the one of its producer id, by ``partition_of``."""
        return shares_topic(self.admission(environment))

    def scores(self, environment: str) -> str:
        """Late scores, as many partitions as the environment has: the key decides on one."""
        return self._name("scores", environment)

    def scores_log(self, address: PartitionAddress) -> TopicPartition:
        """The late scores of one partition of an environment."""
        return self._log(self.scores(address.environment), address)

    def positions(self, environment: str) -> str:
        """How far the readers of sealed groups are, as many partitions as the environment has."""
        return self._name("positions", environment)

    def dead_letters(self) -> str:
        """The records that no sealer could read, of all environments."""
        return self._name("deadletters", "all")

    def sealer_group(self, environment: str) -> str:
        """The consumer group of the environment's sealers."""
        return self._name("sealers", environment)

    def reader_group(self, name: str) -> str:
        """The consumer group of those who read sealed groups under this name."""
        return self._name("readers", name)

    def _names(self, log: str, admin: Admin, timeout_s: float) -> list[str]:
        before, after = f"{self.namespace}.{log}.", f".{self.generation}"
        topics = admin.topics(before, timeout_s)
        return [
            topic.removeprefix(before).removesuffix(after)
            for topic in topics
            if topic.endswith(after)
        ]

    def _log(self, topic: str, address: PartitionAddress) -> TopicPartition:
        assert address.generation == self.generation, (address, self)
        return TopicPartition(topic, address.partition)

    def _name(self, log: str, name: str) -> str:
        for part in (self.namespace, name):
            check_name_in_topic(part)
        return f"{self.namespace}.{log}.{name}.{self.generation}"


def check_name_in_topic(name: str) -> None:
    """The environment, sampler or namespace can be part of a topic's name; else ``BadName``."""
    if not _NAME.fullmatch(name):
        finding = f"{name!r} cannot be part of a topic's name"
        raise BadName("name", name, "use letters, digits, _ and - only", finding)
