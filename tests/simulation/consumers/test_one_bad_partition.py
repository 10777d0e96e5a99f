"""A record that cannot be read concerns its own partition alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from harness.beside_readers import BesideReaders
from harness.sealing import TIMEOUT_S, SealWorld
from rollstream.consumers import SealedGroups, Sealer, audit
from rollstream.consumers.sealing.flush_requests import request_flush
from rollstream.consumers.sealing.retrying import RetryAnswer, request_retry
from rollstream.consumers.sealing.stats import PartitionStats
from rollstream.runtime.deadline import Deadline
from rollstream.schemas import codec
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.events import Claimed
from rollstream.schemas.wire_schemas import MARKER
from rollstream.streams.broker import Record, TopicPartition
from rollstream.streams.errors import DamagedRecord, OffsetLost
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.memory.member import MemoryGroupReader
from rollstream.streams.tracing import trace

TORN = codec.encode(Claimed(owner="sealer-1", nonce="n", software="", root_id=""))[:-3]
UNREADABLE = {"newer": MARKER + bytes(8) + b"newer", "torn": TORN}


def seal_log(world: SealWorld, partition: int) -> TopicPartition:
    return TopicPartition(world.layout.groups("math"), partition)


def put(world: SealWorld, partition: int, value: bytes) -> int:
    """Appends to a seal log; returns the record's offset."""
    where = seal_log(world, partition)
    world.logs.append(where, None, value)
    return world.logs.bounds(where)[1] - 1


def publish(world: SealWorld, name: str) -> None:
    """A group of two in each partition."""
    for partition in range(2):
        for one in "ab":
            world.publish(f"{name}{partition}{one}", partition=partition, example_id=name)


def sealed(world: SealWorld) -> list[tuple[str, ...]]:
    return sorted(world.groups())


def partitions(sealer: object) -> dict[int, PartitionStats]:
    return {one.partition: one for one in sealer.stats().partitions}  # type: ignore[attr-defined]


@pytest.mark.proves("F20")
@pytest.mark.parametrize("running", [True, False])
def test_a_record_that_no_owner_wrote_is_passed_over_and_counted(running: bool) -> None:
    world = SealWorld()
    sealer = world.sealer()
    publish(world, "first")
    world.run(sealer)
    put(world, 0, b"x")
    put(world, 0, b"")
    if not running:
        sealer.close()
        sealer = world.sealer()
    publish(world, "second")
    world.run(sealer)
    found = partitions(sealer)
    assert [(one.foreign, one.aside) for one in found.values()] == [(2, ""), (0, "")]
    sealer.close()
    assert len(sealed(world)) == 4
    report = audit(world.config, broker=world.broker, store=world.blobs, clock=world.clock)
    assert report.problems == ()


@pytest.mark.proves("F20")
@pytest.mark.proves("F24")
@pytest.mark.parametrize("kind", UNREADABLE)
@pytest.mark.parametrize("running", [True, False])
def test_a_record_that_cannot_be_read_puts_its_partition_aside_alone(
    kind: str, running: bool
) -> None:
    world = SealWorld()
    sealer = world.sealer()
    publish(world, "first")
    world.run(sealer)
    offset = put(world, 0, UNREADABLE[kind])
    if not running:
        sealer.close()
        sealer = world.sealer()
    publish(world, "second")
    world.run(sealer, seconds=60)
    found = partitions(sealer)
    assert f"{seal_log(world, 0)}, offset {offset}" in found[0].aside
    assert found[1].aside == ""
    sealer.close()
    assert len(sealed(world)) == 3
    end = world.logs.bounds(seal_log(world, 0))[1]
    with world.sealer() as again:
        world.run(again, seconds=60)
        assert partitions(again)[0].aside
    assert world.logs.bounds(seal_log(world, 0))[1] == end, "nothing is written before it is read"
    assert end - offset <= 2, "at most the event that was on its way"


@pytest.mark.proves("F24")
def test_verifiers_traces_and_requests_go_on_without_it() -> None:
    world = SealWorld(samplers=["trainer-a"])
    with world.sealer() as sealer:
        publish(world, "first")
        world.run(sealer)
        offset = put(world, 0, UNREADABLE["torn"])
        publish(world, "second")
        world.run(sealer, seconds=30)
        where = seal_log(world, 0)
        named = f"{where}, offset {offset}"
        with SealedGroups(
            "verifier",
            ["math"],
            config=world.config,
            broker=world.broker,
            store=world.blobs,
            clock=world.clock,
        ) as groups:
            found = [group for _ in range(20) for group in groups.poll(0.5)]
            assert len(found) == 3
            assert named in groups.aside[where]
        deadline = Deadline(TIMEOUT_S, world.clock)
        for uid, state in (("second0a", "pending"), ("second1a", "sealed")):
            (entry,), _ = trace(world.broker, world.layout, {"math": 2}, uid, deadline)
            assert entry.state == state
            assert (named in entry.detail) == (state == "pending")
        answers = request_flush(
            world.config,
            world.broker,
            environment="math",
            force=False,
            deadline=Deadline(1.0, world.clock),
        )
        assert [named in one.detail for one in answers] == [True, False]


class CorruptingBroker(MemoryBroker):
    """A broker that cannot deliver the seal log of partition 0 to group readers."""

    def __init__(self, world: SealWorld, error: RollstreamError) -> None:
        super().__init__(world.logs)
        self._bad, self._error = seal_log(world, 0), error

    def group_reader(
        self, group: str, topics: Sequence[str], *, on_revoked: Callable[[TopicPartition], None]
    ) -> MemoryGroupReader:
        reader = super().group_reader(group, topics, on_revoked=on_revoked)
        begun, begin, pause, poll = set[TopicPartition](), reader.begin, reader.pause, reader.poll

        def begin_other(where: TopicPartition, offset: int) -> None:
            begun.add(where)
            if where != self._bad:
                begin(where, offset)

        def forget(where: TopicPartition) -> None:
            begun.discard(where)
            pause(where)

        def fail(records_max: int, timeout_s: float) -> list[Record]:
            if self._bad in begun:
                raise self._error
            return poll(records_max, timeout_s)

        vars(reader).update(begin=begin_other, pause=forget, poll=fail)
        return reader


@pytest.mark.proves("F24")
@pytest.mark.parametrize("damaged", [True, False])
def test_verifiers_go_on_without_a_log_that_the_broker_does_not_deliver(damaged: bool) -> None:
    world = SealWorld()
    with world.sealer() as sealer:
        publish(world, "first")
        world.run(sealer)
    where = seal_log(world, 0)
    error = DamagedRecord(where, 3, "damaged") if damaged else OffsetLost(str(where), 3, 0, 2)
    with SealedGroups(
        "verifier",
        ["math"],
        config=world.config,
        broker=CorruptingBroker(world, error),
        store=world.blobs,
        clock=world.clock,
    ) as groups:
        found = [group for _ in range(20) for group in groups.poll(0.5)]
        assert len(found) == 1
        assert groups.aside == {where: str(error)}


def retry(world: SealWorld, sealer: Sealer, seconds: float = 60.0) -> list[RetryAnswer]:
    """Asks, while the sealer runs beside."""
    broker = BesideReaders(world.logs, lambda: world.run(sealer, seconds=1.0))
    deadline = Deadline(seconds, world.clock)
    return request_retry(
        world.config, broker, world.blobs, environment=None, partition=None, deadline=deadline
    )


@pytest.mark.proves("F20", "F24")
@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_partition_that_was_mended_is_tried_again_when_somebody_asks(kind: str) -> None:
    world = SealWorld()
    with world.sealer() as sealer:
        publish(world, "first")
        world.run(sealer)
        offset = put(world, 0, UNREADABLE[kind])
        publish(world, "second")
        world.run(sealer, seconds=60)
        end = world.logs.bounds(seal_log(world, 0))[1]
        (answer,) = retry(world, sealer)
        assert (answer.partition, answer.sealed) == (0, False)
        assert f"{seal_log(world, 0)}, offset {offset}" in answer.detail
        assert "nothing was written" in answer.detail
        assert world.logs.bounds(seal_log(world, 0))[1] == end
        world.logs.cut_back(seal_log(world, 0), offset)
        world.run(sealer, seconds=60)
        assert partitions(sealer)[0].aside, "nobody asked"
        assert world.logs.bounds(seal_log(world, 0))[1] == offset
        (answer,) = retry(world, sealer)
        assert (answer.sealed, answer.detail) == (True, "")
        world.run(sealer, seconds=30)
        assert partitions(sealer)[0].aside == ""
        assert retry(world, sealer) == []
    assert len(sealed(world)) == 4
    report = audit(world.config, broker=world.broker, store=world.blobs, clock=world.clock)
    assert report.problems == ()


@pytest.mark.proves("F24")
def test_a_partition_whose_log_was_cut_back_is_named_and_not_written_to() -> None:
    world = SealWorld()
    with world.sealer() as sealer:
        publish(world, "first")
        world.run(sealer)
        world.logs.cut_back(seal_log(world, 0), 2)
        publish(world, "second")
        world.run(sealer, seconds=60)
        assert "lost" in partitions(sealer)[0].aside
        before = world.logs.bounds(seal_log(world, 0))
        (answer,) = retry(world, sealer)
        assert not answer.sealed
        assert "still cannot be read, and nothing was written: " in answer.detail
        assert "does not hold the flush" in answer.detail
        assert world.logs.bounds(seal_log(world, 0)) == before
        assert partitions(sealer)[1].aside == ""
    assert len(sealed(world)) == 2
