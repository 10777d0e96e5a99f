"""One bound for all partitions of a sealer: how much is admitted, and who may read."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.rollouts import encode_record, make_entry
from rollstream.consumers.assembling import Assembler
from rollstream.consumers.sealing.budget import TURN_S, MemoryBudget
from rollstream.consumers.sealing.intake import ENTRY_BYTES, RECORD_BYTES
from rollstream.runtime.config.sections import EnvironmentConfig
from rollstream.schemas.ingest.entry import Entry
from rollstream.schemas.ingest.record import decode_record
from rollstream.streams.broker import TopicPartition

BOUND = 100
MEASURED = 2_048  # Entries.
SOURCES = [TopicPartition("rollouts", number) for number in range(5)]
Sized = tuple[TopicPartition, int, bool]
"""A record of a partition, its size, and whether the partition commits all it has afterwards."""
RECORDS = st.lists(st.tuples(st.sampled_from(SOURCES), st.integers(0, 60), st.booleans()))


def joined(size_max: int = BOUND) -> MemoryBudget:
    budget = MemoryBudget(size_max)
    for source in SOURCES:
        budget.join(source)
    return budget


def readers(budget: MemoryBudget, now_s: float) -> list[TopicPartition]:
    return [source for source in SOURCES if budget.may_read(source, now_s)]


@given(RECORDS)
def test_no_more_is_in_memory_than_the_bound(records: list[Sized]) -> None:
    budget, sizes = joined(), dict.fromkeys(SOURCES, 0)
    for source, size, commits in records:
        budget.hold(source, sizes[source])
        if budget.admits(size):
            sizes[source] += size
        budget.hold(source, sizes[source])
        assert budget.used == sum(sizes.values()) <= BOUND
        if commits:
            sizes[source] = 0
            budget.hold(source, 0)
    for source in SOURCES:
        budget.leave(source)
    assert budget.used == 0


@given(st.permutations(range(len(SOURCES))), st.sets(st.sampled_from(SOURCES)))
def test_everybody_is_served_in_the_end(order: list[int], silent: set[TopicPartition]) -> None:
    """One after the other while nothing is freed; those that never catch up hinder nobody."""
    budget, now_s, served = MemoryBudget(0), 0.0, []
    arrived = [SOURCES[number] for number in order]
    for source in arrived:
        budget.join(source)
    assert not budget.admits(1)
    for _ in range(2 * len(SOURCES)):
        in_line = [one for one in readers(budget, now_s) if one not in served]
        assert len(in_line) <= 1
        for source in {*in_line} - silent:
            budget.leave_line(source)
            served.append(source)
        now_s += TURN_S
    assert served == [source for source in arrived if source not in silent]
    for _ in silent:
        assert {*readers(budget, now_s)} >= {*SOURCES} - silent
        now_s += TURN_S


def test_all_read_while_there_is_room_and_again_once_there_is() -> None:
    budget = joined()
    assert readers(budget, 0.0) == SOURCES
    budget.hold(SOURCES[1], BOUND)
    assert readers(budget, 0.0) == SOURCES
    assert not budget.admits(1)
    assert readers(budget, 0.0) == SOURCES[:1]
    budget.hold(SOURCES[1], BOUND // 2)
    assert readers(budget, 0.0) == SOURCES[:1]
    budget.hold(SOURCES[1], BOUND // 2 - 1)
    assert readers(budget, 0.0) == SOURCES


def test_who_has_caught_up_reads_whatever_is_in_memory() -> None:
    budget = joined(0)
    budget.leave_line(SOURCES[4])
    assert not budget.admits(1)
    assert readers(budget, 0.0) == [SOURCES[0], SOURCES[4]]
    budget.leave(SOURCES[0])
    assert readers(budget, 0.0)[1:] == [SOURCES[1], SOURCES[4]]


@pytest.mark.parametrize(("per_record", "per_group"), [(1, 1), (1, 8), (32, 1), (32, 8)])
def test_objects_of_pending_entries_take_no_more_than_is_counted(
    per_record: int, per_group: int
) -> None:
    entries = [
        make_entry(rollout_uid=f"{number:032x}", group_uid=f"{number // per_group:032x}")
        for number in range(MEASURED)
    ]
    values = [encode_record(one, partitions=1) for one in batched(entries, per_record)]
    config = EnvironmentConfig(partitions=1, target_group_size=per_group + 1)
    tracemalloc.start()
    try:
        assembler = Assembler("math", config, lambda segments: ())
        for offset, value in enumerate(values):
            assembler.add(offset, offset, decode_record(value))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert assembler.pending.entries == MEASURED
    assert taken < 1.1 * (RECORD_BYTES * len(values) + ENTRY_BYTES * MEASURED)


def batched(entries: Sequence[Entry], size: int) -> Iterator[Sequence[Entry]]:
    return (entries[at : at + size] for at in range(0, len(entries), size))
