"""An owned log that ends before what was read of it, on the twin and on Kafka: nobody goes on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from harness.brokers import TIMEOUT_S, World, until
from harness.owned_logs import in_time, owner_of, settle, settle_confirmed
from rollstream.streams.broker import TopicPartition
from rollstream.streams.errors import DeliveryUnknown, LogLost
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.follow import Follower
from rollstream.streams.owned.log import OwnedLog

pytestmark = pytest.mark.proves("I4", "I6")
Use = Callable[[OwnedLog[SealFold]], object]
FOLDED = 5  # The claim, its `Adopted`, and three flushes.
USES: dict[str, Use] = {
    "claim": lambda log: log.claim(in_time()),
    "claim, no retake": lambda log: log.claim(in_time(), retake=False),
    "look": lambda log: log.look(in_time()),
    "check_still_owner": lambda log: log.check_still_owner(in_time()),
    "fold_arrived": lambda log: log.fold_arrived(in_time()),
}
NAMES_THE_REMEDY = r"was read up to 5, and now .* End this process, .*Kafka's disk is lost"


def end_of(world: World, where: TopicPartition) -> int:
    with closing(world.broker().reader({where: 0})) as reader:
        return reader.bounds(where, TIMEOUT_S)[1]


def owner_with_flushes(world: World, where: TopicPartition) -> OwnedLog[SealFold]:
    log = owner_of(world.broker(), where)
    log.claim(in_time())
    while log.next_offset < FOLDED:
        settle_confirmed(log)
    return log


def assert_goes_on_no_more(world: World, where: TopicPartition, log: OwnedLog[SealFold]) -> None:
    end = end_of(world, where)
    for use in [*USES.values(), settle]:
        with pytest.raises(LogLost, match=NAMES_THE_REMEDY):
            use(log)
    log.release()
    with pytest.raises(LogLost):
        log.claim(in_time())
    assert end_of(world, where) == end, "nothing was written"


@pytest.mark.parametrize("first", USES)
def test_an_owner_whose_log_ends_before_what_it_folded_goes_on_no_more(
    world: World, where: TopicPartition, first: str
) -> None:
    log = owner_with_flushes(world, where)
    world.cut_back(where, 3)
    with pytest.raises(LogLost, match="the log ends at 3"):
        USES[first](log)
    assert_goes_on_no_more(world, where, log)


@pytest.mark.parametrize(
    ("first", "flushes"), [("claim", 1), ("claim", 4), ("claim, no retake", 1), ("look", 4)]
)
def test_an_owner_whose_log_was_made_anew_and_grew_is_found_out_before_it_claims(
    world: World, where: TopicPartition, first: str, flushes: int
) -> None:
    log = owner_with_flushes(world, where)
    world.cut_back(where, 0)
    other = owner_of(world.broker(), where, "b")
    other.claim(in_time())
    other.claim(in_time())
    for _ in range(flushes):
        settle_confirmed(other)
    with pytest.raises(LogLost, match="holds another record at 4"):
        USES[first](log)
    assert_goes_on_no_more(world, where, log)


def test_what_is_appended_to_a_log_that_was_cut_back_is_in_doubt_and_then_lost(
    world: World, where: TopicPartition
) -> None:
    log = owner_with_flushes(world, where)
    world.cut_back(where, 2)
    with pytest.raises(DeliveryUnknown):
        settle_confirmed(log)
    assert end_of(world, where) == 3
    with pytest.raises(LogLost):
        log.claim(in_time())
    assert_goes_on_no_more(world, where, log)


def test_who_only_looked_claims_no_log_that_was_cut_back(
    world: World, where: TopicPartition
) -> None:
    owner_with_flushes(world, where)
    looking = owner_of(world.broker(), where, "looks")
    looking.look(in_time())
    world.cut_back(where, 4)
    with pytest.raises(LogLost):
        looking.claim(in_time())
    assert end_of(world, where) == 4
    owner_of(world.broker(), where, "new").claim(in_time())  # A new process knows nothing of it.


def follower_of_a_cut_log(world: World, where: TopicPartition) -> Follower:
    """It has read what is there no more."""
    owner_with_flushes(world, where)
    follower = Follower(world.broker(), {where: 0})
    assert len(list(follower.read_to_end(in_time()))) == FOLDED
    world.cut_back(where, 4)
    return follower


def test_a_follower_reads_no_further_in_a_log_that_was_cut_back(
    world: World, where: TopicPartition
) -> None:
    follower = follower_of_a_cut_log(world, where)
    for _ in range(2):
        with pytest.raises(LogLost, match="was read up to 5, and now the log ends at 4"):
            list(follower.read_to_end(in_time()))
    with pytest.raises(LogLost):
        follower.poll(1, 0.0)
    follower.close()


def test_a_follower_that_polls_learns_that_its_log_was_cut_back(
    world: World, where: TopicPartition
) -> None:
    follower = follower_of_a_cut_log(world, where)
    with pytest.raises(LogLost, match="now the log ends at 4"):
        until(lambda: False, lambda: follower.poll(1, 0.5))
    follower.close()
