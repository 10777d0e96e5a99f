"""A sampler that runs while sealers are upgraded before it."""

from __future__ import annotations

import pytest

from harness.groups import GroupSpec
from harness.sampler_worlds import memory_world
from rollstream.schemas.events import Claimed
from rollstream.schemas.wire_schemas import MARKER
from rollstream.streams.broker import Record, TopicPartition
from rollstream.streams.errors import NewerEvent
from rollstream.streams.owned.reading import event_in
from rollstream.streams.topics.layout import Layout

WAIT_S = 30.0


@pytest.mark.proves("F19")
def test_it_stops_at_a_newer_event_in_each_call_and_says_so() -> None:
    world = memory_world()
    sampler = world.open()
    sampler.resume(None)
    world.writer().flush(GroupSpec(example_id="a"))
    sampler.ack(sampler.next_batch(0, 1, timeout_s=WAIT_S))
    where = TopicPartition(Layout.of(world.config.kafka).groups("math"), 0)
    writer = world.broker().writer()
    writer.append(where.topic, MARKER + bytes(8) + b"newer", partition=where.partition)
    assert writer.flush(WAIT_S) == 0
    for _ in range(2):
        with pytest.raises(NewerEvent, match="upgrade this process") as raised:
            sampler.next_batch(1, 1, timeout_s=WAIT_S)
        told = str(raised.value)
        assert str(where) in told
        assert "where a version before 0.1.0 or another program did" in told
        assert "newer owner" not in told
    world.close()


@pytest.mark.parametrize(
    ("software", "told"),
    [("9.9.9", " (the log was claimed last by 'sealer-7', rollstream 9.9.9). "), ("", " it. ")],
)
def test_the_version_of_who_claimed_the_log_is_named_where_it_is_known(
    software: str, told: str
) -> None:
    record = Record("topic", 0, 7, 0, None, MARKER + bytes(8))
    with pytest.raises(NewerEvent) as raised:
        event_in(record, Claimed(owner="sealer-7", nonce="n", software=software))
    assert told in str(raised.value)
