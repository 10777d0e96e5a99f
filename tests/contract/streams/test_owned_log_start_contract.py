"""Starting on an owned log, as owner or as follower, on the twin and on Kafka."""

from __future__ import annotations

import re
from contextlib import closing

import pytest

from harness.brokers import TIMEOUT_S, World, until, write
from harness.faults import Fate, FaultyBroker
from harness.owned_logs import (
    HORIZON,
    SOON_S,
    in_time,
    only,
    owner_of,
    saved_fold,
    settle,
    settle_confirmed,
    whole_fold,
)
from harness.seal_events import flushed
from harness.sealed_state import digest_of
from rollstream.runtime.deadline import Deadline
from rollstream.schemas import codec
from rollstream.schemas.events import Adopted, Claimed
from rollstream.streams.broker import EARLIEST, TopicPartition
from rollstream.streams.errors import (
    ClaimFailed,
    CorruptLog,
    Fenced,
    OffsetLost,
)
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.adoption import find_start, find_starts
from rollstream.streams.owned.fold import SavedFold
from rollstream.streams.owned.follow import Follower
from rollstream.streams.owned.log import RECLAIM_EVERY_RECORDS

# --- start-up ---


def test_every_hint_leads_to_the_same_fold(world: World, where: TopicPartition) -> None:
    log, zombie = owner_of(world.broker(), where), owner_of(world.broker(), where, "zombie")
    log.claim(in_time())
    for _ in range(30):
        settle_confirmed(log)
        if log.fold.watermark % 100 == 0:
            log.claim(in_time())
    stale = log.epoch
    zombie.claim(in_time())
    settle_confirmed(zombie)
    crashed = FaultyBroker(world.broker(), only(Adopted, Fate.DROP, times=9))
    died = owner_of(crashed, where, "died before it adopted")
    with pytest.raises(ClaimFailed):
        died.claim(Deadline(SOON_S))
    _, end = world.broker().reader({where: 0}).bounds(where, TIMEOUT_S)
    not_adopted = end - 1  # The last claim of the one that died.
    expected = digest_of(whole_fold(world, where))
    hints = (None, -1, 0, 1, stale, zombie.epoch, not_adopted, stale + 1, 10_000)
    for hint in hints:
        successor = owner_of(world.broker(), where, f"hint {hint}")
        fold = successor.claim(in_time(), hint=hint)
        assert fold.watermark == 310
        assert digest_of(fold) == expected, hint
        successor.release()
    with pytest.raises(Fenced):
        zombie.wait_confirmed(settle(zombie), in_time())


@pytest.mark.proves("I4")
def test_a_saved_fold_goes_on_where_it_ended(world: World, where: TopicPartition) -> None:
    log = owner_of(world.broker(), where)
    log.claim(in_time())
    for _ in range(3):
        settle_confirmed(log)
    saved = saved_fold(log)
    for _ in range(3):
        settle_confirmed(log)
    second = owner_of(world.broker(), where, "b")
    second.claim(in_time())
    settle_confirmed(second)
    with pytest.raises(Fenced):  # A zombie's event, behind the claim, counts for nobody.
        log.wait_confirmed(settle(log), in_time())
    late = saved_fold(second)
    for one in (saved, late):
        third = owner_of(world.broker(), where, "c", saved=[one])
        assert third.claim(in_time()) is one.fold
        assert digest_of(one.fold) == digest_of(whole_fold(world, where))
        settle_confirmed(third)
        assert digest_of(one.fold) == digest_of(whole_fold(world, where))
        again = owner_of(world.broker(), where, "d")  # What it adopted is no shorter than it is.
        again.claim(in_time())
        assert digest_of(again.fold) == digest_of(one.fold)


def test_a_saved_fold_that_the_log_does_not_prove_is_not_gone_on_from(
    world: World, where: TopicPartition
) -> None:
    log = owner_of(world.broker(), where)
    log.claim(in_time())
    settle_confirmed(log)
    true = saved_fold(log)
    settle_confirmed(log)
    end = log.place()
    assert end is not None
    wrong = [
        true.place._replace(record=bytes(16)),
        true.place._replace(next_offset=end.next_offset),
        true.place._replace(next_offset=end.next_offset + 1, record=end.record),
        true.place._replace(next_offset=0),
    ]
    refused = [SavedFold(SealFold(dedupe_horizon=HORIZON), place) for place in wrong]
    successor = owner_of(world.broker(), where, "b", saved=[*refused, true])
    assert successor.claim(in_time()) is true.fold
    last = owner_of(world.broker(), where, "c", saved=refused)
    fold = last.claim(in_time())
    assert not [one for one in refused if one.fold is fold]
    assert digest_of(fold) == digest_of(whole_fold(world, where))


def test_who_owns_the_log_no_more_saves_nothing(world: World, where: TopicPartition) -> None:
    log = owner_of(world.broker(), where)
    assert log.place() is None
    log.claim(in_time())
    owner_of(world.broker(), where, "b").claim(in_time())
    with pytest.raises(Fenced):
        settle_confirmed(log)
    assert log.place() is None


@pytest.mark.parametrize("hinted", [True, False])
def test_adopting_costs_the_horizon_and_not_the_history(
    world: World, where: TopicPartition, hinted: bool
) -> None:
    log = owner_of(world.broker(), where)
    log.claim(in_time())
    for number in range(1000):
        settle_confirmed(log, 5)
        if number % 40 == 0:
            log.claim(in_time())
    broker = FaultyBroker(world.broker())
    successor = owner_of(broker, where, "b")
    fold = successor.claim(in_time(), hint=log.epoch if hinted else None)
    assert fold.watermark == 5000
    assert digest_of(fold) == digest_of(log.fold) == digest_of(whole_fold(world, where))
    # From fold_from: the horizon of 10 flushes, at least 16, up to the claim before, up to now.
    assert broker.records_read < (150 if hinted else 500)


def test_the_starts_of_several_logs_are_those_of_each(world: World) -> None:
    topic = world.topic(partitions=5)
    hinted, unhinted, misled, empty, corrupt = logs = [TopicPartition(topic, n) for n in range(5)]
    hints: dict[TopicPartition, int | None] = dict.fromkeys(logs)
    for where in (hinted, unhinted, misled):
        log = owner_of(world.broker(), where)
        log.claim(in_time())
        for _ in range(5):
            for _ in range(20):
                settle_confirmed(log, 5)
            log.claim(in_time())
        hints[where] = log.epoch if where == hinted else 1
        for _ in range(300 if where == unhinted else 10):
            settle_confirmed(log, 5)
    hints[unhinted] = None
    write(world.broker(), corrupt, [codec.encode(Claimed(owner="x", nonce="n"))[:12]])
    counted = FaultyBroker(world.broker())
    found = find_starts(counted, hints, in_time())
    read = counted.records_read
    for where in (hinted, unhinted, misled, empty):
        with closing(world.broker().reader({where: 0})) as reader:
            assert found[where] == find_start(reader, where, hints[where], in_time())
    assert (found[hinted] > 0, found[unhinted] > 0) == (True, True)
    assert (found[empty], found[corrupt]) == (0, 0)
    assert read < 2_000, "each no more than alone, whatever the others need"
    assert find_starts(counted, {}, in_time()) == {}


def test_a_long_lived_owner_should_claim_again(world: World, where: TopicPartition) -> None:
    log = owner_of(world.broker(), where)
    assert not log.should_reclaim()
    log.claim(in_time())
    for number in range(RECLAIM_EVERY_RECORDS - 2):  # Its claim and `Adopted` are records, too.
        assert not log.should_reclaim()
        event = flushed(log.epoch, log.nonce, [number], number + 1)
        log.wait_confirmed(log.append(event), in_time())
    assert log.should_reclaim()
    log.claim(in_time())
    assert not log.should_reclaim()


def test_a_beginning_that_is_gone_matters_only_without_a_checkpoint(
    world: World, where: TopicPartition
) -> None:
    log = owner_of(world.broker(), where)
    log.claim(in_time())
    for _ in range(60):
        settle_confirmed(log)
    log.claim(in_time())
    settle_confirmed(log)
    log.claim(in_time())
    world.drop_before(where, 62)  # The second claim's own offset.
    successor = owner_of(world.broker(), where, "b")
    with pytest.raises(OffsetLost):
        successor.claim(in_time())  # That claim's checkpoint names the first.
    assert successor.fold.watermark == 0


def test_a_log_whose_old_part_is_gone_is_adopted_from_its_checkpoint(
    world: World, where: TopicPartition
) -> None:
    log = owner_of(world.broker(), where)
    log.claim(in_time())
    for _ in range(3):
        for _ in range(20):
            settle_confirmed(log)
        log.claim(in_time())
    expected = digest_of(log.fold)
    world.drop_before(where, 22)
    assert digest_of(owner_of(world.broker(), where, "b").claim(in_time())) == expected


# --- followers ---


def test_a_follower_starts_at_a_claim_and_reads_on(world: World, where: TopicPartition) -> None:
    log = owner_of(world.broker(), where)
    log.claim(in_time())
    settle_confirmed(log)
    log.claim(in_time())
    settle_confirmed(log)
    follower = Follower(world.broker(), {where: log.epoch})
    assert follower.next_offsets() == {where: 3}
    assert [entry.offset for entry in follower.read_to_end(in_time())] == [3, 4, 5]
    settle_confirmed(log)
    assert [entry.offset for entry in follower.read_to_end(in_time())] == [6]
    assert list(follower.read_to_end(in_time())) == []
    follower.close()
    follower.close()


def test_a_follower_refuses_to_start_where_no_claim_stands(
    world: World, where: TopicPartition
) -> None:
    log = owner_of(world.broker(), where)
    log.claim(in_time())
    settle_confirmed(log)
    with pytest.raises(CorruptLog, match="start at a claim"):
        list(Follower(world.broker(), {where: 2}).read_to_end(in_time()))


def test_bytes_that_no_owner_wrote_are_passed_over(world: World, where: TopicPartition) -> None:
    log = owner_of(world.broker(), where)
    log.claim(in_time())
    write(world.broker(), where, [b"no event at all", b""])
    log.wait_confirmed(settle(log), in_time())
    follower = Follower(world.broker(), {where: 0})
    assert [one.offset for one in follower.read_to_end(in_time())] == [0, 1, 4]
    assert follower.foreign == {where: 2}
    follower.close()
    successor = owner_of(world.broker(), where)
    assert digest_of(successor.claim(in_time())) == digest_of(log.fold)
    assert log.foreign == 2


def test_an_event_that_cannot_be_read_is_never_passed_over(
    world: World, where: TopicPartition
) -> None:
    log = owner_of(world.broker(), where)
    log.claim(in_time())
    write(world.broker(), where, [codec.encode(Claimed(owner="o", nonce="n"))[:-1]])
    follower = Follower(world.broker(), {where: 0})
    before = list[int]()
    named = rf"{re.escape(str(where))}, offset 2: torn: .*take the right to write"
    with pytest.raises(CorruptLog, match=named):
        until(lambda: False, lambda: before.extend(e.offset for e in follower.poll(100, 0.1)))
    assert before == [0, 1]
    with pytest.raises(CorruptLog, match=named):
        follower.poll(100, 0.1)
    assert follower.next_offsets() == {where: 2}
    with pytest.raises(CorruptLog, match=named):
        log.wait_confirmed(settle(log), in_time())
    with pytest.raises(CorruptLog, match=named):
        owner_of(world.broker(), where).claim(in_time())


def test_a_follower_of_many_partitions_keeps_each_ones_order(world: World) -> None:
    topic = world.topic(partitions=3)
    partitions = [TopicPartition(topic, number) for number in range(3)]
    broker = world.broker()
    logs = [owner_of(broker, where) for where in partitions]
    for log in logs:
        log.claim(in_time())
    for _ in range(5):
        for log in logs:
            settle_confirmed(log)
    follower = Follower(broker, dict.fromkeys(partitions, EARLIEST))
    confirmed = list(follower.read_to_end(in_time()))
    for where in partitions:
        assert [entry.offset for entry in confirmed if entry.where == where] == list(range(7))
    assert follower.next_offsets() == dict.fromkeys(partitions, 7)
