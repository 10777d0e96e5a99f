"""The newest policy of the sampler whose stale groups are settled, from ``admission.<env>``."""

from __future__ import annotations

from typing import Self

from rollstream.consumers.assembling.freshness import Freshness
from rollstream.folds.choosing import choosing_of
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.schemas import codec
from rollstream.schemas.choosing import Choosing
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import NewestPolicy, PolicyAnnounced
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.compacted import CompactedLog
from rollstream.streams.topics.layout import Layout

ANNOUNCED_EVERY_S = 0.05


class AnnouncedPolicy:
    """Follows the log from its beginning; of several announcements the one with the highest
    ``offset`` in the decision log holds, in whatever order they are read.

    Args:
        sampler: whose policies count.
        choosing: its settings.
    """

    def __init__(
        self, broker: Broker, where: TopicPartition, sampler: str, choosing: Choosing
    ) -> None:
        self._records = CompactedLog(broker, where)
        self._sampler = sampler
        self._choosing = choosing
        self._newest: PolicyAnnounced | None = None

    @classmethod
    def of(
        cls, environment: str, config: RollstreamConfig, broker: Broker, layout: Layout
    ) -> Self | None:
        """As the environment is configured; None where each sampler drops its own."""
        name = config.environments[environment].fresh_for
        if not name:
            return None
        choosing = choosing_of(config.samplers[name], config.environments)
        where = TopicPartition(layout.admission(environment), 0)
        return cls(broker, where, name, choosing)

    @property
    def loaded(self) -> bool:
        """Whether all was read that the log held at first: nothing is to be sealed before, or what
        waited for a sealer would be compared with nothing."""
        return self._records.loaded

    def poll(self) -> float:
        """Reads what has come, a job.

        Raises:
            BrokerUnavailable, NotAuthorised, UnknownTopic: the broker's answer.
        """
        for record in self._records.poll():
            try:
                event = codec.decode(record.value)
            except UnreadableEvent:
                continue  # Anything may stand there; what is not known settles nothing.
            if isinstance(event, PolicyAnnounced) and event.sampler == self._sampler:
                newest = self._newest
                self._newest = event if newest is None or event.offset > newest.offset else newest
        return ANNOUNCED_EVERY_S

    def freshness(self, now_us: int) -> Freshness | None:
        """What groups are compared with at this log time, as far as was read; None: no policy is
        known. No branch where the sampler keeps what is off them."""
        newest, choosing = self._newest, self._choosing
        if newest is None:
            return None
        branches = len(newest.branch_epochs) if newest.drops_off_branch else 0
        policy = NewestPolicy(
            sampler=newest.sampler,
            offset=newest.offset,
            lineage=newest.lineage,
            policy_epoch=newest.policy_epoch,
            step=newest.step,
            max_policy_lag=choosing.max_policy_lag,
            branch_epochs=newest.branch_epochs[:branches],
            branch_steps=newest.branch_steps[:branches],
        )
        return Freshness(policy, choosing, now_us)

    def close(self) -> None:
        """Closes what it reads with."""
        self._records.close()
