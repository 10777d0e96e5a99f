"""What becomes of the files that an event retires."""

from __future__ import annotations

import pytest

from rollstream.consumers.retention.files import READ_S, project_retired
from rollstream.consumers.retention.owner import READ_TIMEOUT_S
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import MemoryBlobs
from rollstream.streams.broker import TopicPartition, TopicSpec
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.memory import MemoryBroker, MemoryLogs

NOT_DELIVERED = 0  # The offset of an event that the broker does not hand out.


def test_a_silent_broker_holds_the_thread_of_all_partitions_for_one_answer_only() -> None:
    clock = ManualClock()
    broker, where = MemoryBroker(MemoryLogs(clock)), TopicPartition("groups.math", 0)
    broker.admin().create([TopicSpec(where.topic, 1, {})], 1.0)
    address, deadline = PartitionAddress("math", 1, 0), Deadline(READ_TIMEOUT_S, clock)
    began_s = clock.monotonic_s()
    with pytest.raises(BrokerUnavailable, match=f"within {READ_S} s"):
        project_retired(MemoryBlobs(), broker, where, address, NOT_DELIVERED, deadline)
    assert clock.monotonic_s() - began_s < 2 * READ_S
