"""Where a rollout is, by logs that are read from about its time."""

from __future__ import annotations

import pytest

from harness.brokers import TIMEOUT_S
from harness.faults import FaultyBroker
from harness.owned_logs import owner_of
from harness.rollouts import encode_record, make_entry
from harness.seal_events import flushed
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import TopicPartition
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.owned.adoption import CLOCKS_APART_US
from rollstream.streams.topics.create import create_topics
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.specs import specs_for
from rollstream.streams.tracing import MARGIN_US, trace

FLUSHES = 1000
EXPIRED_EACH_S = 10.0
PARTITIONS = {"math": 1}


def expired_in_turn(clock: ManualClock, layout: Layout, each_s: float) -> FaultyBroker:
    """A broker with a seal log of ``FLUSHES``, each of which lets the rollout of its number
    expire."""
    broker = FaultyBroker(MemoryBroker(clock=clock))
    create_topics(broker.admin(), specs_for(layout, PARTITIONS), TIMEOUT_S)
    log = owner_of(broker, TopicPartition(layout.groups("math"), 0))
    for offset in range(FLUSHES):
        clock.advance(each_s)
        if offset % 10 == 0:
            log.claim(Deadline(TIMEOUT_S, clock))
        uids = {"expired": [f"u{offset}"]}
        event = flushed(
            log.epoch,
            log.nonce,
            (),
            offset + 1,
            settled={"expired": [offset]},
            settled_uids=uids,
        )
        log.wait_confirmed(log.append(event), Deadline(TIMEOUT_S, clock))
    log.release()
    return broker


def again(broker: FaultyBroker, clock: ManualClock, layout: Layout, uid: str) -> None:
    """The rollout expires once more, in the newest flush."""
    log = owner_of(broker, TopicPartition(layout.groups("math"), 0))
    log.claim(Deadline(TIMEOUT_S, clock))
    settled, uids = {"expired": [FLUSHES]}, {"expired": [uid]}
    event = flushed(log.epoch, log.nonce, (), FLUSHES + 1, settled=settled, settled_uids=uids)
    log.wait_confirmed(log.append(event), Deadline(TIMEOUT_S, clock))
    log.release()


def records_of(broker: FaultyBroker, clock: ManualClock, layout: Layout, uid: str) -> int:
    """How many records a trace of the rollout reads, which finds it."""
    before = broker.records_read
    found, _ = trace(broker, layout, PARTITIONS, uid, Deadline(TIMEOUT_S, clock))
    assert [one.rollout_uid for one in found] == [uid]
    return broker.records_read - before


def test_a_trace_of_a_new_rollout_reads_no_old_events() -> None:
    clock, layout = ManualClock(), Layout()
    broker = expired_in_turn(clock, layout, each_s=3_600.0)
    old = records_of(broker, clock, layout, "u20")
    new = records_of(broker, clock, layout, f"u{FLUSHES - 20}")
    assert old > FLUSHES
    assert new < old / 2
    deadline = Deadline(TIMEOUT_S, clock)
    assert trace(broker, layout, PARTITIONS, "never published", deadline) == ([], 0)


def test_what_a_pending_rollout_repeats_is_found_however_old_it_is() -> None:
    clock, layout = ManualClock(), Layout()
    broker = expired_in_turn(clock, layout, each_s=3_600.0)
    writer, repeated = broker.writer(), encode_record([make_entry(rollout_uid="u20")], partitions=1)
    for _ in range(FLUSHES + 1):  # Of the last one alone no flush says anything.
        writer.append(layout.rollouts("math"), repeated, partition=0)
    assert writer.flush(TIMEOUT_S) == 0
    found, since_us = trace(broker, layout, PARTITIONS, "u20", Deadline(TIMEOUT_S, clock))
    assert [(one.offset, one.state) for one in found] == [(20, "expired"), (FLUSHES, "pending")]
    assert since_us == 0


def test_a_trace_that_left_older_events_unread_says_from_when_on_it_read() -> None:
    clock, layout = ManualClock(), Layout()
    broker = expired_in_turn(clock, layout, each_s=3_600.0)
    later_us = clock.now_us() + 30 * MARGIN_US
    clock.advance(30 * MARGIN_US / 1e6)
    again(broker, clock, layout, "u20")
    found, since_us = trace(broker, layout, PARTITIONS, "u20", Deadline(TIMEOUT_S, clock))
    assert [one.offset for one in found] == [FLUSHES]
    assert later_us - 2 * MARGIN_US < since_us <= later_us - MARGIN_US
    deadline = Deadline(TIMEOUT_S, clock)
    found, since_us = trace(broker, layout, PARTITIONS, "u20", deadline, since_us=1)
    assert ([one.offset for one in found], since_us) == ([20, FLUSHES], 0)


@pytest.mark.parametrize("expired", [10, FLUSHES - 10])
def test_a_trace_since_a_time_finds_what_came_later_and_reads_no_more_than_it_needs(
    expired: int,
) -> None:
    clock, layout = ManualClock(), Layout()
    begun_us = clock.now_us()
    broker = expired_in_turn(clock, layout, EXPIRED_EACH_S)
    deadline = Deadline(TIMEOUT_S, clock)
    before = broker.records_read
    (whole,), _ = trace(broker, layout, PARTITIONS, f"u{expired}", deadline)
    read = broker.records_read - before
    assert (whole.offset, whole.state) == (expired, "expired")
    since_us = begun_us + round(expired * EXPIRED_EACH_S * 1e6)
    found, _ = trace(broker, layout, PARTITIONS, f"u{expired}", deadline, since_us=since_us)
    assert found == [whole]
    late_us = clock.now_us() + CLOCKS_APART_US
    before = broker.records_read
    late, _ = trace(broker, layout, PARTITIONS, f"u{expired}", deadline, since_us=late_us)
    assert len(late) == (expired > FLUSHES // 2), "what is read beside is not hidden"
    assert broker.records_read - before < read / 2
