"""Which store's root a seal log names, on the twin and on Kafka."""

from __future__ import annotations

from harness.brokers import World, write
from harness.owned_logs import in_time, owner_of, settle_confirmed
from rollstream.schemas.codec import encode
from rollstream.schemas.events import Claimed, RootRecorded
from rollstream.streams.broker import TopicPartition
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.log import OwnedLog
from rollstream.streams.topics.root import RecordedRoot, recorded_root

ROOT = "file:///data/run-17"


def record(log: OwnedLog[SealFold], root_id: str = "id-1") -> int:
    event = RootRecorded(epoch=log.epoch, nonce=log.nonce, root_id=root_id, root=ROOT)
    return log.wait_confirmed(log.append(event), in_time())


def end_of(world: World, where: TopicPartition) -> int:
    reader = world.broker().reader({where: 0})
    _, end = reader.bounds(where, in_time().left_s())
    reader.close()
    return end


def test_a_log_that_names_none_is_left_as_it_is(world: World, where: TopicPartition) -> None:
    assert recorded_root(world.broker(), where, in_time()) is None
    log = owner_of(world.broker(), where)
    log.claim(in_time())
    settle_confirmed(log)
    end = end_of(world, where)
    assert recorded_root(world.broker(), where, in_time()) is None
    assert end_of(world, where) == end


def test_what_stands_at_the_beginning_is_found_however_long_the_log(
    world: World, where: TopicPartition
) -> None:
    log = owner_of(world.broker(), where)
    log.claim(in_time())
    offset = record(log)
    for _ in range(400):
        settle_confirmed(log, 1)
    found = recorded_root(world.broker(), where, in_time())
    assert found == RecordedRoot(offset, "id-1", ROOT)


def test_what_a_log_named_later_is_found(world: World, where: TopicPartition) -> None:
    """A deployment from before roots had ids, and what came after its id was made."""
    log = owner_of(world.broker(), where)
    log.claim(in_time())
    for _ in range(300):
        settle_confirmed(log, 1)
    offset = record(log)
    for _ in range(300):
        settle_confirmed(log, 1)
    assert recorded_root(world.broker(), where, in_time()) == RecordedRoot(offset, "id-1", ROOT)
    assert log.fold.root_id == "id-1"


def test_a_claim_that_names_it_is_enough(world: World, where: TopicPartition) -> None:
    first = owner_of(world.broker(), where)
    first.claim(in_time())
    for _ in range(100):
        settle_confirmed(first, 1)
    first.root_id = "id-1"
    first.claim(in_time())
    found = recorded_root(world.broker(), where, in_time())
    assert found == RecordedRoot(first.epoch, "id-1", "")
    assert owner_of(world.broker(), where).claim(in_time()).root_id == "id-1"


def test_what_a_fenced_owner_recorded_does_not_count(world: World, where: TopicPartition) -> None:
    zombie = owner_of(world.broker(), where, "zombie")
    zombie.claim(in_time())
    stale = RootRecorded(epoch=zombie.epoch, nonce=zombie.nonce, root_id="id-2", root=ROOT)
    write(world.broker(), where, [encode(Claimed(owner="b", nonce="n")), encode(stale)])
    assert recorded_root(world.broker(), where, in_time()) is None
    owner = owner_of(world.broker(), where)
    owner.claim(in_time())
    assert owner.fold.root_id == ""
    record(owner)
    found = recorded_root(world.broker(), where, in_time())
    assert found is not None
    assert found.root_id == "id-1"
