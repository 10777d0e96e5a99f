"""Owners of seal logs, as short as a test can say them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy

from harness.brokers import TIMEOUT_S, World
from harness.faults import Append, Fate
from harness.seal_events import flushed
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.entropy import SystemEntropy
from rollstream.schemas import codec
from rollstream.streams.broker import EARLIEST, Broker, TopicPartition
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.fold import SavedFold
from rollstream.streams.owned.follow import Follower
from rollstream.streams.owned.log import OwnedLog
from rollstream.streams.owned.sending import Ticket

HORIZON = 50
SOON_S = 1.0  # For what is known to be lost: nothing comes however long one waits.


def in_time() -> Deadline:
    return Deadline(TIMEOUT_S)


def owner_of(
    broker: Broker,
    where: TopicPartition,
    owner: str = "a",
    *,
    saved: Sequence[SavedFold[SealFold]] = (),
) -> OwnedLog[SealFold]:
    return OwnedLog(
        broker,
        where,
        owner=owner,
        make_fold=lambda: SealFold(dedupe_horizon=HORIZON),
        entropy=SystemEntropy(),
        saved=lambda _: saved,
    )


def saved_fold(log: OwnedLog[SealFold]) -> SavedFold[SealFold]:
    """What the owner has folded so far, apart from what it folds later."""
    place = log.place()
    assert place is not None, "not the owner"
    return SavedFold(deepcopy(log.fold), place)


def settle(log: OwnedLog[SealFold], count: int = 10) -> Ticket:
    """Appends the flush that settles the next ``count`` offsets."""
    start = log.fold.watermark
    stop = start + count
    return log.append(flushed(log.epoch, log.nonce, range(start, stop), stop))


def settle_confirmed(log: OwnedLog[SealFold], count: int = 10) -> int:
    return log.wait_confirmed(settle(log, count), in_time())


def only(kind: type, fate: Fate, times: int = 1) -> Callable[[Append], Fate]:
    """``fate`` for the first ``times`` events of one kind."""
    left = times

    def decide(append: Append) -> Fate:
        nonlocal left
        if left and isinstance(codec.decode(append.value), kind):
            left -= 1
            return fate
        return Fate.PASS

    return decide


def whole_fold(world: World, where: TopicPartition) -> SealFold:
    """What a reader who begins at the beginning makes of the log."""
    fold = SealFold(dedupe_horizon=HORIZON)
    follower = Follower(world.broker(), {where: EARLIEST})
    for confirmed in follower.read_to_end(in_time()):
        fold.apply(confirmed.offset, confirmed.timestamp_us, confirmed.event)
    follower.close()
    return fold
