"""What is gathered becomes records: each entry once, in order, within the bounds."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.faults import Append, Fate, FaultyBroker
from harness.producer_faults import never_linger
from harness.producers import OUTBOX, new_layout, published, sampled
from rollstream.producers import RolloutProducer
from rollstream.producers.engine.gather import (
    HELD_BYTES_MAX,
    RECORD_BYTES,
    RECORD_ENTRIES_MAX,
    Gatherer,
)
from rollstream.producers.engine.outbox import Address, Outgoing
from rollstream.streams.broker import TopicSpec
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.partitioning import partition_of
from rollstream.streams.topics.layout import RECORD_BYTES_MAX, Layout

TOPIC = Layout().rollouts("math")
KEYS = [f"group-{number}" for number in range(6)]
SIGNATURES = [None, ("experts", np.uint8), ("experts", np.float32), ("other", np.uint8)]


def entry(size: int = 100, signature: Any = None, partition: int = 0) -> Outgoing:
    """An entry that says it has this size."""
    arrays = {} if signature is None else {signature[0]: np.zeros(3, signature[1])}
    fields = OUTBOX.segment({"example_id": "ex", **sampled(token_arrays=arrays)})
    outgoing = OUTBOX.rollout(fields)
    outgoing.size = size
    outgoing.address = TOPIC, partition
    return outgoing


def taken(gatherer: Gatherer, *partitions: int) -> list[list[Outgoing]]:
    """Every record that can be sent, each answered before the next."""
    found = []
    for partition in partitions or (0,):
        while record := gatherer.take((TOPIC, partition)):
            found.append(record)
            gatherer.answered(record)
            gatherer.forget(record)
    return found


sizes = st.sampled_from([1, 100, RECORD_BYTES // 3, RECORD_BYTES - 1, RECORD_BYTES, 5_000_000])
appends = st.tuples(st.integers(0, 2), sizes, st.sampled_from(SIGNATURES))


@given(st.lists(appends | st.none(), max_size=60))
def test_any_entries_come_out_once_in_order_within_the_bounds(steps: list[Any]) -> None:
    gatherer = Gatherer()
    given: dict[Address, list[Outgoing]] = defaultdict(list)
    records: list[list[Outgoing]] = []
    for step in [*steps, None]:
        if step is None:
            gatherer.end_linger()
            for _, partition in gatherer.take_ready():
                records += taken(gatherer, partition)
            continue
        partition, size, signature = step
        outgoing = entry(size, signature, partition)
        given[TOPIC, partition].append(outgoing)
        if gatherer.append(outgoing):
            records += taken(gatherer, partition)
    came: dict[Address, list[Outgoing]] = defaultdict(list)
    for record in records:
        came[record[0].address] += record
        assert len(record) == 1 or sum(one.size for one in record) <= RECORD_BYTES
        signatures: dict[str, set[Any]] = defaultdict(set)
        for outgoing in record:
            assert outgoing.entry is not None
            for name, array in outgoing.entry.extras.get("token_arrays", {}).items():
                signatures[name].add((array.dtype, array.shape))
        assert all(len(found) == 1 for found in signatures.values())
    assert came == given
    assert (gatherer.entries, gatherer.held_bytes, gatherer.behind) == (0, 0, False)


def test_a_record_that_is_full_goes_without_the_end_of_the_linger() -> None:
    gatherer = Gatherer()
    full = [gatherer.append(entry(1)) for _ in range(RECORD_ENTRIES_MAX)]
    assert full == [False] * (RECORD_ENTRIES_MAX - 1) + [True]
    gatherer.append(entry(1))
    (record,) = taken(gatherer)
    assert len(record) == RECORD_ENTRIES_MAX
    assert gatherer.entries == 1


def test_one_record_of_a_partition_is_on_its_way_at_a_time() -> None:
    gatherer = Gatherer()
    first, second = entry(RECORD_BYTES), entry(RECORD_BYTES)
    gatherer.append(first)
    gatherer.append(second)
    record = gatherer.take((TOPIC, 0))
    assert record == [first]
    gatherer.end_linger()
    assert gatherer.take((TOPIC, 0)) == []
    assert gatherer.behind
    gatherer.answered(record)
    gatherer.forget(record)
    assert taken(gatherer) == [[second]]


def test_what_comes_after_the_end_of_a_linger_waits_for_the_next() -> None:
    gatherer = Gatherer()
    first, second, third = entry(RECORD_BYTES), entry(1), entry(1)
    gatherer.append(first)
    gatherer.append(second)
    gatherer.end_linger()
    assert taken(gatherer) == [[first], [second]]
    gatherer.append(third)
    assert taken(gatherer) == []
    gatherer.end_linger()
    assert taken(gatherer) == [[third]]


def test_parts_of_a_refused_record_go_before_what_came_after_it() -> None:
    gatherer = Gatherer()
    entries = [entry(1) for _ in range(5)]
    for outgoing in entries:
        gatherer.append(outgoing)
    gatherer.end_linger()
    record = gatherer.take((TOPIC, 0))
    later = entry(1)
    gatherer.append(later)
    gatherer.put_back(record, too_large=True)
    assert taken(gatherer) == [entries[:2], entries[2:4], [entries[4], later]]


def test_what_comes_after_a_record_that_was_refused_is_gathered_as_before() -> None:
    gatherer = Gatherer()
    refused = [entry(1) for _ in range(3)]  # They take more than they say.
    for outgoing in refused:
        gatherer.append(outgoing)
    gatherer.end_linger()
    gatherer.put_back(gatherer.take((TOPIC, 0)), too_large=True)
    assert taken(gatherer) == [[one] for one in refused]
    later = [entry(100) for _ in range(10)]
    assert [gatherer.append(outgoing) for outgoing in later] == [False] * 10
    gatherer.end_linger()
    assert taken(gatherer) == [later]


@given(st.lists(st.integers(1, 1_000), min_size=1, max_size=20), st.integers(1, 1_000))
def test_a_record_that_is_refused_again_and_again_ends_as_records_of_one(
    sizes: list[int], takes: int
) -> None:
    """The broker takes no more than ``takes`` bytes, but for a record of one."""
    gatherer = Gatherer()
    entries = [entry(size) for size in sizes]
    for outgoing in entries:
        gatherer.append(outgoing)
    gatherer.end_linger()
    came: list[Outgoing] = []
    while record := gatherer.take((TOPIC, 0)):
        if len(record) > 1 and sum(one.size for one in record) > takes:
            gatherer.put_back(record, too_large=True)
        else:
            gatherer.answered(record)
            gatherer.forget(record)
            came += record
    assert came == entries


def test_the_largest_goes_first_and_the_bound_is_one_for_all_partitions() -> None:
    gatherer = Gatherer()
    wide = RECORD_BYTES // 2
    for partition in range(40):
        outgoing = entry(wide + partition, partition=partition)
        assert gatherer.has_room_for([outgoing])
        gatherer.append(outgoing)
    left = HELD_BYTES_MAX - gatherer.held_bytes
    assert not gatherer.has_room_for([entry(left)])
    assert gatherer.has_room_for([entry(left // 2)])
    gatherer.end_linger()
    assert gatherer.take_ready() == [(TOPIC, partition) for partition in range(39, -1, -1)]
    record = gatherer.take((TOPIC, 39))
    # What is on its way counts until it is answered.
    assert not gatherer.has_room_for([entry(left)])
    gatherer.answered(record)
    gatherer.forget(record)
    assert gatherer.has_room_for([entry(left)])


def test_where_the_bound_is_reached_the_largest_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    never_linger(monkeypatch)  # Only the bound sends.
    sent: list[int] = []

    def decide(append: Append) -> Fate:
        sent.append(len(append.value))
        return Fate.PASS

    broker = FaultyBroker(MemoryBroker(), decide)
    partitions = 64
    topic = TopicSpec(TOPIC, partitions, {"max.message.bytes": str(RECORD_BYTES_MAX)})
    broker.admin().create([topic], 1.0)
    with RolloutProducer(broker=broker, environment="math") as producer:
        keys = {partition_of(b"%d" % key, partitions): str(key) for key in range(1_000)}
        for number, key in enumerate(keys.values()):
            tokens = np.zeros(RECORD_BYTES // 8 + 1_000 * number, np.int32)
            given = sampled(output_tokens=tokens, logprobs=None)
            producer.publish(example_id="ex", group_uid=key, **given)
        assert len(sent) > 10
        assert sent == sorted(sent, reverse=True)


@given(st.lists(st.integers(0, 9), max_size=9, unique=True), st.booleans())
def test_what_is_taken_out_before_it_left_is_in_no_record(out: list[int], full: bool) -> None:
    gatherer = Gatherer()
    entries = [entry(RECORD_BYTES if full else 10) for _ in range(10)]
    for outgoing in entries:
        gatherer.append(outgoing)
    for index in out:
        gatherer.take_out(entries[index])
    gatherer.end_linger()
    came = [outgoing for record in taken(gatherer) for outgoing in record]
    assert came == [one for index, one in enumerate(entries) if index not in out]
    assert (gatherer.entries, gatherer.held_bytes) == (0, 0)


calls = st.lists(
    st.tuples(
        st.sampled_from(["publish", "dispatch", "flush"]),
        st.sampled_from(KEYS),
        st.sampled_from(SIGNATURES),
    ),
    max_size=30,
)


@given(calls)
def test_any_calls_are_in_the_log_once_in_the_order_of_their_key(steps: list[Any]) -> None:
    broker = MemoryBroker()
    layout = new_layout(broker)
    wanted: dict[str, list[Any]] = defaultdict(list)
    with RolloutProducer(broker=broker, environment="math", namespace=layout.namespace) as producer:
        for number, (call, key, signature) in enumerate(steps):
            if call == "flush":
                producer.flush()
            elif call == "dispatch":
                # Entered, left early: the events that it was dispatched and that members failed.
                with producer.dispatch(example_id=key, group_uid=key, group_size=number + 1):
                    pass
                wanted[key] += [("dispatched", number + 1), ("failed", number + 1)]
            else:
                arrays = {} if signature is None else {signature[0]: np.ones(3, signature[1])}
                uid = f"uid-{number}"
                producer.publish(
                    example_id="ex",
                    group_uid=key,
                    rollout_uid=uid,
                    **sampled(token_arrays=arrays),
                )
                wanted[key].append(("segment", uid))
    found: dict[str, list[Any]] = defaultdict(list)
    for logged in published(broker, layout):
        kind = ["segment", "dispatched", "failed"][logged.entry.kind]
        name = "rollout_uid" if kind == "segment" else "group_size"
        found[logged.entry.key].append((kind, logged.fields[name]))
    assert found == wanted
