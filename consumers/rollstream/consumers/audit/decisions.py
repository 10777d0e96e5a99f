"""Whether a sampler's decision log holds the batches that the store's root does."""

from __future__ import annotations

from contextlib import closing

from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import BatchServed
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.owned.follow import Follower, PutAside
from rollstream.streams.topics.lost import Followed, lost_batch


def decision_problem(
    broker: Broker,
    log: TopicPartition,
    followed: Followed,
    sampler: str,
    deadline: Deadline,
    answer_s: float,
) -> str:
    """What is wrong, in words; empty: nothing is. The log is read where the root holds batches.

    Raises:
        BrokerUnavailable: as ``audit``. StoreError.
    """
    written = followed.newest_batch(sampler)
    if written is None:
        return ""
    decided = (0, 0)
    aside: dict[TopicPartition, PutAside] = {}
    with closing(Follower(broker, {log: 0}, aside=aside)) as follower:
        for confirmed in follower.read_to_end(deadline, ends_within_s=answer_s):
            event = confirmed.event
            if isinstance(event, BatchServed):
                decided = max(decided, (event.trainer_epoch, event.step + 1))
    if log in aside:
        return f"the log of sampler {sampler!r} cannot be read on: {aside[log].error}"
    return lost_batch(log, written, decided)
