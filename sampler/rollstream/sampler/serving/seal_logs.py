"""The seal logs that a sampler draws from, all partitions of all its environments."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from rollstream.runtime.clock import Clock
from rollstream.runtime.config.sections import RollstreamConfig, SamplerConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Event
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.owned.follow import Follower
from rollstream.streams.topics.layout import Layout

POLL_RECORDS_MAX = 256  # Flushes that are folded between two looks at what was asked.
CATCH_UP_SLICE_S = 0.2
ASK_AGAIN_S = 0.05  # After "not leader" and the like, as just after a topic was made.


class Sealed(NamedTuple):
    """An event of a seal log that counts."""

    log: PartitionAddress
    offset: int
    event: Event


class SealLogs:
    """Within a partition in the order of offsets; between partitions in the order of arrival.

    Attributes:
        begun: whether ``begin`` was called.
    """

    def __init__(
        self, broker: Broker, section: SamplerConfig, config: RollstreamConfig, *, clock: Clock
    ) -> None:
        layout = Layout(config.kafka.namespace, config.kafka.generation)
        self._logs = {
            TopicPartition(layout.groups(name), partition): PartitionAddress(
                name, layout.generation, partition
            )
            for name in sorted(section.environments)
            for partition in range(config.environments[name].partitions)
        }
        self._broker = broker
        self._clock = clock
        self._follower: Follower | None = None
        self.begun = False

    def logs(self) -> list[PartitionAddress]:
        """All of them."""
        return list(self._logs.values())

    def topics(self) -> set[str]:
        """Where they stand."""
        return {where.topic for where in self._logs}

    def begin(self, deadline: Deadline) -> Iterator[Sealed]:
        """Reads (again) from the beginning up to the ends as they stand now.

        Raises:
            BrokerUnavailable: not reached by the deadline.
        """
        self.close()
        self._follower = Follower(self._broker, dict.fromkeys(self._logs, 0))
        ends = self._ends(deadline)
        while True:
            seen = self._follower.next_offsets()
            behind = [where for where, end in ends.items() if seen[where] < end]
            if not behind:
                self.begun = True
                return
            if deadline.passed():
                raise BrokerUnavailable(
                    f"{behind[0]} was read up to {seen[behind[0]]}, not to its end at "
                    f"{ends[behind[0]]}, within {deadline.timeout_s} s; raise kafka.timeout_s"
                )
            yield from self.poll(deadline.slice_s(CATCH_UP_SLICE_S))
            deadline.log_waiting(partial("{} to be read to its end".format, behind[0]))

    def poll(self, timeout_s: float) -> list[Sealed]:
        """What comes next; waits up to ``timeout_s`` for the first."""
        assert self._follower is not None, "begin first"
        confirmed = self._follower.poll(POLL_RECORDS_MAX, timeout_s)
        return [Sealed(self._logs[where], offset, event) for where, offset, _, event in confirmed]

    def close(self) -> None:
        """Idempotent."""
        self.begun = False
        if self._follower is not None:
            self._follower.close()
            self._follower = None

    def _ends(self, deadline: Deadline) -> dict[TopicPartition, int]:
        """The next offset of each log now; asks again while the broker is not ready."""
        reader = self._broker.reader(dict.fromkeys(self._logs, 0))
        never = threading.Event()
        ends: dict[TopicPartition, int] = {}
        try:
            for where in self._logs:
                while where not in ends:
                    try:
                        ends[where] = reader.bounds(where, max(0.001, deadline.left_s()))[1]
                    except BrokerUnavailable as error:
                        if deadline.passed():
                            raise
                        deadline.log_waiting(partial(str, error))
                        self._clock.wait(never, deadline.slice_s(ASK_AGAIN_S))
        finally:
            reader.close()
        return ends
