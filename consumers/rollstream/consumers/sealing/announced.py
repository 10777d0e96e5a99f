"""The newest policy of the sampler whose stale groups are settled, from ``admission.<env>``."""

from __future__ import annotations

import logging
from typing import Self

from rollstream.consumers.assembling.freshness import Freshness
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.schemas import codec
from rollstream.schemas.choosing import Choosing
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import NewestPolicy, PolicyAnnounced
from rollstream.streams.broker import EARLIEST, Broker, LogReader, TopicPartition
from rollstream.streams.errors import OffsetLost
from rollstream.streams.folds.sampler.choosing import choosing_of
from rollstream.streams.topics.layout import Layout

_READ_RECORDS_MAX = 256  # At a time; the log is compacted, and holds few.
_ANSWER_S = 0.5  # How long the broker is asked where the log ends; then again at the next step.
_IDLE_S = 1.0  # What comes is read at once; only an idle broker is spared.
_log = logging.getLogger("rollstream.sealer")


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
        self._broker = broker
        self._where = where
        self._sampler = sampler
        self._choosing = choosing
        self._reader: LogReader | None = None
        self._newest: PolicyAnnounced | None = None
        self._end = -1  # Of the log, until all was read once; -1: not known yet.
        self._read_to = 0

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
        """Whether the log was once read to its end: nothing is to be sealed before, or what waited
        for a sealer would be compared with nothing."""
        return 0 <= self._end <= self._read_to

    def poll(self) -> None:
        """Reads what has come.

        Raises:
            BrokerUnavailable, NotAuthorised, UnknownTopic: the broker's answer.
        """
        if self._reader is None:
            self._reader = self._broker.reader({self._where: EARLIEST}, idle_s=_IDLE_S)
        if not self.loaded:
            self._end = self._reader.bounds(self._where, _ANSWER_S)[1]
        try:
            records = self._reader.poll(_READ_RECORDS_MAX, 0.0)
        except OffsetLost as lost:
            _log.warning("%s; it is read from its beginning", lost)
            self._reader.seek(self._where, EARLIEST)
            return
        # A log that was compacted has offsets that hold no record.
        behind = records[-1].offset + 1 if records else self._reader.read_to(self._where)
        self._read_to = max(self._read_to, behind)
        for record in records:
            try:
                event = codec.decode(record.value)
            except UnreadableEvent:
                continue  # Anything may stand there; what is not known settles nothing.
            if isinstance(event, PolicyAnnounced) and event.sampler == self._sampler:
                newest = self._newest
                self._newest = event if newest is None or event.offset > newest.offset else newest

    def freshness(self) -> Freshness | None:
        """What groups are compared with, as far as was read; None: no policy is known. Of the
        branches those that the sampler announced: none where it keeps what is off them."""
        newest, choosing = self._newest, self._choosing
        if newest is None:
            return None
        policy = NewestPolicy(
            sampler=newest.sampler,
            offset=newest.offset,
            lineage=newest.lineage,
            policy_epoch=newest.policy_epoch,
            step=newest.step,
            max_policy_lag=choosing.max_policy_lag,
            branch_epochs=newest.branch_epochs,
            branch_steps=newest.branch_steps,
        )
        return Freshness(policy, choosing)

    def close(self) -> None:
        """Closes what it reads with."""
        if self._reader is not None:
            self._reader.close()
