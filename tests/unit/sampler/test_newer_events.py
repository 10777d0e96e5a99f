"""A seal log that a sampler cannot read on, as where sealers are upgraded before it."""

from __future__ import annotations

import re
from contextlib import closing

import pytest

from harness.brokers import until
from harness.groups import GroupSpec
from harness.sampler_worlds import LocalWorld, memory_world
from rollstream.sampler import NotEnoughGroups, SamplerView
from rollstream.sampler.engine import logs
from rollstream.sampler.history import replay_step, report_of
from rollstream.schemas import codec
from rollstream.schemas.events import Claimed
from rollstream.schemas.wire_schemas import MARKER
from rollstream.streams.broker import Record, TopicPartition
from rollstream.streams.errors import NewerEvent, UnreadableLog
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.owned.reading import event_in
from rollstream.streams.topics.layout import Layout

WAIT_S = 30.0
UNREADABLE = {
    "newer": MARKER + bytes(8) + b"newer",
    "torn": codec.encode(Claimed(owner="sealer-1", nonce="n"))[:-1],
}


def put(world: LocalWorld, value: bytes, partition: int = 0) -> tuple[TopicPartition, int]:
    """Appends to a seal log of math; returns where the record stands."""
    where = TopicPartition(Layout.of(world.config.kafka).groups("math"), partition)
    writer = world.broker().writer()
    writer.append(where.topic, value, partition=where.partition)
    assert writer.flush(WAIT_S) == 0
    with closing(world.broker().reader({where: 0})) as reader:
        return where, reader.bounds(where, WAIT_S)[1] - 1


@pytest.mark.proves("F19", "F20", "F24")
@pytest.mark.parametrize("kind", UNREADABLE)
@pytest.mark.parametrize("restart", [False, True])
def test_it_goes_on_without_the_partition_at_a_recorded_cursor(kind: str, restart: bool) -> None:
    world = memory_world()
    sampler = world.open()
    sampler.resume(None)
    first, second = world.writer(partition=0), world.writer(partition=1)
    first.flush(GroupSpec(example_id="a"))
    sampler.ack(sampler.next_batch(0, 1, timeout_s=WAIT_S))
    where, offset = put(world, UNREADABLE[kind])
    with pytest.raises(UnreadableLog):
        first.flush(GroupSpec(example_id="never"))
    second.flush(GroupSpec(example_id="b"))
    if restart:
        world.restart()
        sampler = world.open()
    batch = sampler.next_batch(1, 1, timeout_s=WAIT_S)
    assert set(batch.example_ids) == {"b"}
    sampler.ack(batch)
    with pytest.raises(NotEnoughGroups, match=re.escape(f"{where} is read no more")):
        sampler.next_batch(2, 1, timeout_s=0.0)
    with SamplerView(
        world.name, config=world.config, broker=world.broker(), store=world.store
    ) as view:
        for stats in (sampler.stats(), view.stats()):
            assert stats.aside.keys() == {str(where)}
            assert f"{where}, offset {offset}" in stats.aside[str(where)]
        assert view.batch(1).digest == batch.digest
    for step in (0, 1):
        (again,) = replay_step(world.name, step, config=world.config, broker=world.broker())
        assert again.same
    (served,) = replay_step(world.name, 1, config=world.config, broker=world.broker())
    cursor = {(at.environment, at.partition): at.groups_next_offset for at in served.event.cursor}
    assert cursor["math", 0] == offset
    report = report_of(world.name, config=world.config, broker=world.broker())
    assert report.totals.trained == 4
    assert report.aside.keys() == {str(where)}
    world.close()


@pytest.mark.proves("F24")
@pytest.mark.parametrize("restart", [False, True])
def test_it_goes_on_with_the_partition_once_that_can_be_read(
    restart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "TRY_AGAIN_S", 0.05)
    world = memory_world()
    broker = world.broker()
    assert isinstance(broker, MemoryBroker)
    sampler = world.open()
    sampler.resume(None)
    world.writer(partition=0).flush(GroupSpec(example_id="a"))
    sampler.ack(sampler.next_batch(0, 1, timeout_s=WAIT_S))
    where, offset = put(world, UNREADABLE["torn"])
    world.writer(partition=1).flush(GroupSpec(example_id="b"))
    sampler.ack(sampler.next_batch(1, 1, timeout_s=WAIT_S))
    until(lambda: sampler.stats().aside.keys() == {str(where)})
    with pytest.raises(NotEnoughGroups, match="is read no more"):  # Also when it is tried again.
        sampler.next_batch(2, 1, timeout_s=0.5)
    if restart:
        world.restart()
    broker.logs.cut_back(where, offset)  # As where the record is copied from another replica.
    world.writer(partition=0).flush(GroupSpec(example_id="c"))
    sampler = world.open()
    batch = sampler.next_batch(2, 1, timeout_s=WAIT_S)
    assert set(batch.example_ids) == {"c"}
    assert sampler.stats().aside == {}
    for step in range(3):
        (again,) = replay_step(world.name, step, config=world.config, broker=world.broker())
        assert again.same
    world.close()


@pytest.mark.proves("F20")
def test_it_passes_over_a_record_that_no_owner_wrote() -> None:
    world = memory_world()
    sampler = world.open()
    sampler.resume(None)
    put(world, b"x")
    world.writer().flush(GroupSpec(example_id="a"))
    put(world, b"")
    assert set(sampler.next_batch(0, 1, timeout_s=WAIT_S).example_ids) == {"a"}
    assert sampler.stats().aside == {}
    world.close()


@pytest.mark.proves("F24")
def test_groups_begun_in_a_partition_that_is_put_aside_stop_counting_for_admission() -> None:
    world = memory_world()
    world.configure(groups_per_step=16, target_policy_lag=0)
    sampler = world.open()
    sampler.resume(None)
    for partition in range(2):
        world.writer(partition=partition).report(worker=(4, 2, 0))
    until(lambda: sampler.stats().capacity["math"] == 4)
    put(world, UNREADABLE["torn"])
    until(lambda: bool(sampler.stats().aside))
    assert sampler.stats().capacity["math"] == 6
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
