"""The contract of the owned log (DESIGN section 3), on the twin and on Kafka."""

from __future__ import annotations

import pytest

from harness.brokers import LOG_CONFIG, TIMEOUT_S, World, write
from harness.faults import Append, Fate, FaultyBroker
from harness.owned_logs import (
    SOON_S,
    in_time,
    only,
    owner_of,
    settle,
    settle_confirmed,
    whole_fold,
)
from harness.retiring import requested
from harness.seal_events import flushed
from harness.sealed_state import digest_of
from rollstream.runtime.deadline import Deadline
from rollstream.schemas import codec
from rollstream.schemas.events import Adopted, Claimed, Flushed
from rollstream.schemas.wire_schemas import MARKER
from rollstream.streams.broker import EARLIEST, TopicPartition
from rollstream.streams.errors import (
    BrokerError,
    BrokerUnavailable,
    BufferFull,
    ClaimFailed,
    DeliveryUnknown,
    Fenced,
    NewerEvent,
    RecordTooLarge,
    UnknownTopic,
)
from rollstream.streams.owned.follow import Follower

# --- one owner ---


def test_what_an_owner_appends_is_confirmed_in_order(world: World, where: TopicPartition) -> None:
    log = owner_of(world.broker(), where)
    log.claim(in_time())
    first = settle(log)
    assert log.fold.watermark == 0  # Appended is not confirmed.
    with pytest.raises(AssertionError, match="on its way"):
        settle(log)
    assert log.wait_confirmed(first, in_time()) == 2
    assert log.fold.watermark == 10
    assert [settle_confirmed(log), settle_confirmed(log)] == [3, 4]
    assert log.wait_confirmed(first, in_time()) == 2
    assert log.fold.watermark == 30
    follower = Follower(world.broker(), {where: 0})
    kinds = [type(confirmed.event) for confirmed in follower.read_to_end(in_time())]
    assert kinds == [Claimed, Adopted, Flushed, Flushed, Flushed]
    assert follower.next_offsets() == {where: 5}


@pytest.mark.proves("I4")
def test_a_claim_folds_all_that_counts(world: World, where: TopicPartition) -> None:
    first = owner_of(world.broker(), where)
    first.claim(in_time())
    settle_confirmed(first)
    settle_confirmed(first)
    first.release()
    second = owner_of(world.broker(), where, "b")
    fold = second.claim(in_time())
    assert fold is second.fold
    assert (fold.watermark, second.epoch) == (20, 4)
    assert fold.seen_among(["u7"])
    assert not fold.seen_among(["u20"])
    assert settle_confirmed(second) == 6


def test_an_owner_that_claims_again_keeps_its_fold(world: World, where: TopicPartition) -> None:
    log = owner_of(world.broker(), where)
    before = log.claim(in_time())
    old = settle(log)
    log.wait_confirmed(old, in_time())
    assert log.claim(in_time()) is before
    assert log.epoch == 3
    assert settle_confirmed(log) == 5
    assert log.wait_confirmed(old, in_time()) == 2  # What was confirmed stays known.
    assert digest_of(whole_fold(world, where)) == digest_of(log.fold)


def test_what_was_not_confirmed_before_a_claim_is_in_its_fold_if_it_was_written(
    world: World, where: TopicPartition
) -> None:
    log = owner_of(world.broker(), where)
    log.claim(in_time())
    ticket = settle(log)
    log.claim(in_time())
    with pytest.raises(DeliveryUnknown, match="fold"):
        log.wait_confirmed(ticket, in_time())
    assert log.fold.watermark in (0, 10)
    watermark = log.fold.watermark
    settle_confirmed(log)  # The new claim is not in doubt for an old ticket's sake.
    assert log.fold.watermark == watermark + 10


def test_what_was_released_is_claimed_before_it_is_used(
    world: World, where: TopicPartition
) -> None:
    log = owner_of(world.broker(), where)
    with pytest.raises(DeliveryUnknown, match="claim first"):
        log.append(flushed(0, "", [], 0))
    log.claim(in_time())
    log.release()
    log.release()
    with pytest.raises(DeliveryUnknown, match="claim again"):
        settle(log)
    log.claim(in_time())
    assert settle_confirmed(log) == 4


def test_an_event_of_another_claim_is_a_defect(world: World, where: TopicPartition) -> None:
    log = owner_of(world.broker(), where)
    log.claim(in_time())
    with pytest.raises(AssertionError, match="another claim"):
        log.append(flushed(log.epoch + 1, log.nonce, [0], 1))


def test_claiming_no_topic_says_so(world: World) -> None:
    log = owner_of(world.broker(), TopicPartition("missing.topic", 0))
    with pytest.raises(UnknownTopic):
        log.claim(in_time())


@pytest.mark.proves("F20")
def test_a_look_reads_what_is_new_since_the_last(world: World, where: TopicPartition) -> None:
    log, broker = owner_of(world.broker(), where), FaultyBroker(world.broker())
    looking = owner_of(broker, where, "looks")
    log.claim(in_time())
    settle_confirmed(log)
    fold = looking.look(in_time())
    read = broker.records_read
    settle_confirmed(log)
    assert looking.look(in_time()) is fold
    assert digest_of(looking.look(in_time())) == digest_of(log.fold)
    assert broker.records_read == read + 2, "the new one, and the one before, which is compared"


@pytest.mark.proves("F19")
def test_who_looked_and_then_meets_a_newer_event_fences_nobody(
    world: World, where: TopicPartition
) -> None:
    log, looking = owner_of(world.broker(), where), owner_of(world.broker(), where, "looks")
    log.claim(in_time())
    looking.look(in_time())
    write(world.broker(), where, [MARKER + bytes(8) + b"newer"])
    with pytest.raises(NewerEvent):
        looking.claim(in_time())
    assert world.broker().reader({where: 0}).bounds(where, TIMEOUT_S) == (0, 3)  # Nothing appended.


def ask(world: World, where: TopicPartition) -> None:
    write(world.broker(), where, [codec.encode(requested())])


def test_an_owner_that_appends_nothing_folds_what_others_asked(
    world: World, where: TopicPartition
) -> None:
    log = owner_of(world.broker(), where)
    log.claim(in_time())
    log.fold_arrived(in_time())
    assert (log.next_offset, log.fold.requests) == (2, {})
    ask(world, where)
    log.fold_arrived(in_time())
    log.fold_arrived(in_time())
    assert (log.next_offset, list(log.fold.requests)) == (3, [2])
    assert settle_confirmed(log) == 3
    assert digest_of(whole_fold(world, where)) == digest_of(log.fold)


def test_an_owner_that_appends_folds_requests_on_the_way(
    world: World, where: TopicPartition
) -> None:
    log = owner_of(world.broker(), where)
    log.claim(in_time())
    ask(world, where)
    assert settle_confirmed(log) == 3
    assert list(log.fold.requests) == [2]


def test_an_owner_that_appends_nothing_learns_that_it_was_fenced(
    world: World, where: TopicPartition
) -> None:
    old, new = owner_of(world.broker(), where, "old"), owner_of(world.broker(), where, "new")
    old.claim(in_time())
    new.claim(in_time())
    with pytest.raises(Fenced, match="'new' claimed"):
        old.fold_arrived(in_time())


# --- two owners ---


@pytest.mark.proves("I4")
def test_of_two_owners_the_events_of_the_newer_count_and_the_older_is_fenced(
    world: World, where: TopicPartition
) -> None:
    old, new = owner_of(world.broker(), where, "old"), owner_of(world.broker(), where, "new")
    old.claim(in_time())
    settle_confirmed(old)
    new.claim(in_time(), hint=old.epoch)
    late = settle(old)
    with pytest.raises(Fenced, match="'new' claimed at 3"):
        old.wait_confirmed(late, in_time())
    with pytest.raises(Fenced):
        settle(old)
    assert old.fold.watermark == 10
    assert settle_confirmed(new) == 6  # Over the gap that the old one's append left.
    assert digest_of(whole_fold(world, where)) == digest_of(new.fold)
    assert new.fold.watermark == 20


def test_a_fenced_owner_may_claim_again_and_begins_anew(
    world: World, where: TopicPartition
) -> None:
    first, second = owner_of(world.broker(), where), owner_of(world.broker(), where, "b")
    before = first.claim(in_time())
    settle_confirmed(first)
    second.claim(in_time())
    settle_confirmed(second)
    with pytest.raises(Fenced):
        first.wait_confirmed(settle(first), in_time())
    assert first.claim(in_time()) is not before
    assert first.fold.watermark == 20
    with pytest.raises(Fenced):
        second.wait_confirmed(settle(second), in_time())
    settle_confirmed(first)
    assert digest_of(whole_fold(world, where)) == digest_of(first.fold)


def test_a_claim_over_a_foreign_one_begins_anew(world: World, where: TopicPartition) -> None:
    first, second = owner_of(world.broker(), where), owner_of(world.broker(), where, "b")
    before = first.claim(in_time())
    settle_confirmed(first)
    second.claim(in_time())
    settle_confirmed(second)
    assert first.claim(in_time()) is not before  # It never wrote meanwhile, so it was not told.
    assert first.fold.watermark == 20


@pytest.mark.proves("I3")
def test_what_a_zombie_goes_on_writing_does_not_count(world: World, where: TopicPartition) -> None:
    zombie, owner = owner_of(world.broker(), where, "zombie"), owner_of(world.broker(), where)
    zombie.claim(in_time())
    settle_confirmed(zombie)
    owner.claim(in_time())
    junk = [flushed(zombie.epoch, zombie.nonce, range(n, n + 10), n + 10) for n in (10, 20, 30)]
    for event in junk:  # As a producer does that was stopped in the middle and continued.
        write(world.broker(), where, [codec.encode(event)])
        settle_confirmed(owner)
    assert owner.fold.watermark == 40
    follower = Follower(world.broker(), {where: EARLIEST})
    confirmed = list(follower.read_to_end(in_time()))
    flushes = [entry.offset for entry in confirmed if isinstance(entry.event, Flushed)]
    assert flushes == [2, 6, 8, 10]
    assert digest_of(whole_fold(world, where)) == digest_of(owner.fold)


def test_an_event_with_the_right_epoch_and_another_nonce_does_not_count(
    world: World, where: TopicPartition
) -> None:
    log = owner_of(world.broker(), where)
    log.claim(in_time())
    write(world.broker(), where, [codec.encode(flushed(log.epoch, "other", range(10), 10))])
    settle_confirmed(log)
    assert digest_of(whole_fold(world, where)) == digest_of(log.fold)


# --- doubt ---


@pytest.mark.proves("I1", "I4")
@pytest.mark.parametrize(
    ("fate", "is_there"),
    [
        (Fate.LOSE_REPORT, True),
        (Fate.DROP, False),
        (Fate.DOUBT, True),
        (Fate.DOUBT_AND_DROP, False),
    ],
)
def test_a_lost_report_is_settled_by_a_claim(
    world: World, where: TopicPartition, fate: Fate, is_there: bool
) -> None:
    broker = FaultyBroker(world.broker())
    log = owner_of(broker, where)
    fold = log.claim(in_time())
    broker.decide = only(Flushed, fate)
    doubtful = settle(log)
    with pytest.raises(DeliveryUnknown):
        log.wait_confirmed(doubtful, Deadline(SOON_S))
    with pytest.raises(DeliveryUnknown):
        settle(log)
    assert log.claim(in_time()) is fold
    assert fold.watermark == (10 if is_there else 0)
    settle_confirmed(log)
    assert digest_of(whole_fold(world, where)) == digest_of(fold)


@pytest.mark.proves("I4")
def test_who_is_in_doubt_may_leave_the_log_to_whoever_took_over(
    world: World, where: TopicPartition
) -> None:
    broker = FaultyBroker(world.broker())
    owner_of(world.broker(), where, "before").claim(in_time())
    log = owner_of(broker, where)
    with pytest.raises(ClaimFailed, match=r": no time was left for an attempt$"):
        log.claim(Deadline(0.0))
    broker.decide = only(Claimed, Fate.DROP, times=9)
    with pytest.raises(ClaimFailed, match=r" s: .*\w"):
        log.claim(Deadline(SOON_S), retake=False)
    broker.decide = lambda append: Fate.PASS
    log.claim(in_time(), retake=False)  # Who never owned it takes over.
    broker.decide = only(Flushed, Fate.DROP)
    with pytest.raises(DeliveryUnknown):
        log.wait_confirmed(settle(log), Deadline(SOON_S))
    log.claim(in_time(), retake=False)  # Nobody took over.
    broker.decide = only(Flushed, Fate.DROP)
    with pytest.raises(DeliveryUnknown):
        log.wait_confirmed(settle(log), Deadline(SOON_S))
    successor = owner_of(world.broker(), where, "b")
    successor.claim(in_time())
    with pytest.raises(Fenced, match="'b' claimed"):
        log.claim(in_time(), retake=False)
    settle_confirmed(successor)


@pytest.mark.proves("I4")
@pytest.mark.parametrize("fate", [Fate.DROP, Fate.DOUBT_AND_DROP])
def test_whoever_took_over_between_two_attempts_of_a_claim_keeps_the_log(
    world: World, where: TopicPartition, fate: Fate
) -> None:
    broker = FaultyBroker(world.broker())
    log, successor = owner_of(broker, where), owner_of(world.broker(), where, "b")
    log.claim(in_time())
    broker.decide = only(Flushed, Fate.DROP)
    with pytest.raises(DeliveryUnknown):
        log.wait_confirmed(settle(log), Deadline(SOON_S))

    def lose_while_another_claims(append: Append) -> Fate:
        broker.decide = lambda append: Fate.PASS
        successor.claim(in_time())
        return fate  # With DROP the attempt goes on to read the other's claim, else it ends.

    broker.decide = lose_while_another_claims
    for _ in range(2):  # It is not forgotten either.
        with pytest.raises(Fenced, match="'b' claimed"):
            log.claim(Deadline(12 * SOON_S), retake=False)
    settle_confirmed(successor)
    assert digest_of(whole_fold(world, where)) == digest_of(successor.fold)


@pytest.mark.parametrize("kind", [Claimed, Adopted])
@pytest.mark.parametrize("fate", [Fate.LOSE_REPORT, Fate.DROP, Fate.DOUBT, Fate.DOUBT_AND_DROP])
def test_a_claim_survives_doubt_about_its_own_events(
    world: World, where: TopicPartition, kind: type, fate: Fate
) -> None:
    broker = FaultyBroker(world.broker(), only(kind, fate))
    log = owner_of(broker, where)
    log.claim(Deadline(12 * SOON_S))
    settle_confirmed(log)
    assert digest_of(whole_fold(world, where)) == digest_of(log.fold)


@pytest.mark.proves("I4")
def test_a_claim_that_lands_late_fences_its_own_sender_which_claims_again(
    world: World, where: TopicPartition
) -> None:
    broker = FaultyBroker(world.broker(), only(Claimed, Fate.HOLD, times=9))
    log = owner_of(broker, where)
    with pytest.raises(ClaimFailed):
        log.claim(Deadline(SOON_S))
    broker.decide = lambda append: Fate.PASS
    fold = log.claim(in_time())
    settle_confirmed(log)
    assert broker.land() > 0
    ticket = settle(log)
    with pytest.raises(DeliveryUnknown, match="landed late"):
        log.wait_confirmed(ticket, in_time())
    assert log.claim(in_time()) is fold
    assert fold.watermark == 10  # What stood behind the late claim never counted.
    settle_confirmed(log)
    assert fold.watermark == 20
    assert digest_of(whole_fold(world, where)) == digest_of(fold)


def test_a_claim_that_lands_between_claim_and_adoption_is_claimed_over(
    world: World, where: TopicPartition
) -> None:
    broker = FaultyBroker(world.broker(), only(Claimed, Fate.HOLD, times=9))
    log = owner_of(broker, where)
    with pytest.raises(ClaimFailed):
        log.claim(Deadline(SOON_S))

    def land_before_adoption(append: Append) -> Fate:
        if isinstance(codec.decode(append.value), Adopted):
            broker.decide = lambda append: Fate.PASS
            assert broker.land() > 0
        return Fate.PASS

    broker.decide = land_before_adoption
    log.claim(in_time())
    settle_confirmed(log)
    assert digest_of(whole_fold(world, where)) == digest_of(log.fold)


@pytest.mark.proves("I3")
def test_an_append_that_lands_after_a_later_claim_does_not_count(
    world: World, where: TopicPartition
) -> None:
    broker = FaultyBroker(world.broker())
    log = owner_of(broker, where)
    log.claim(in_time())
    broker.decide = only(Flushed, Fate.HOLD)
    with pytest.raises(DeliveryUnknown):
        log.wait_confirmed(settle(log), Deadline(SOON_S))
    log.claim(in_time())
    broker.land()
    settle_confirmed(log)
    assert log.fold.watermark == 10
    assert digest_of(whole_fold(world, where)) == digest_of(log.fold)


@pytest.mark.parametrize("error", [BufferFull("the test's"), BrokerUnavailable("the test's")])
def test_an_event_that_could_not_be_handed_over_is_settled_by_a_claim_like_any_other(
    world: World, where: TopicPartition, error: BrokerError
) -> None:
    broker = FaultyBroker(world.broker())
    log = owner_of(broker, where)
    fold = log.claim(in_time())

    def refuse(append: Append) -> Fate:
        raise error

    broker.decide = refuse
    with pytest.raises(BrokerUnavailable, match="the test's"):
        log.wait_confirmed(settle(log), in_time())
    broker.decide = lambda append: Fate.PASS
    with pytest.raises(DeliveryUnknown, match="claim again"):
        settle(log)
    assert log.claim(in_time()) is fold
    settle_confirmed(log)
    assert fold.watermark == 10
    assert digest_of(whole_fold(world, where)) == digest_of(fold)


def test_a_refusal_for_good_is_said_and_leaves_nothing_behind_it(world: World) -> None:
    topic = world.topic(config={**LOG_CONFIG, "max.message.bytes": "5000"})
    log = owner_of(world.broker(), TopicPartition(topic, 0))
    log.claim(in_time())
    big = log.append(flushed(log.epoch, log.nonce, range(1000), 1000))
    with pytest.raises(RecordTooLarge):
        log.wait_confirmed(big, in_time())
    with pytest.raises(DeliveryUnknown):
        settle(log)
    log.claim(in_time())
    assert log.fold.watermark == 0
    settle_confirmed(log)
    assert log.fold.watermark == 10
