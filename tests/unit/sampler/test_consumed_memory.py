"""Memory of groups that were fetched is given back."""

from __future__ import annotations

import gc
import tracemalloc
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from harness.decider import LOGS, Decider
from harness.groups import GroupSpec, flush_of
from rollstream.folds import pace, state
from rollstream.folds.group import known_groups
from rollstream.folds.group.known_groups import NEWEST_MAX as KNOWN_NEWEST_MAX
from rollstream.folds.group.sorted_rows import NEWEST_MAX as ROWS_NEWEST_MAX
from rollstream.folds.saved_state import from_bytes, to_pieces
from rollstream.folds.scores import recently_sealed
from rollstream.folds.state import SamplerState
from rollstream.sampler.decide.trainer.commands import Ack, MarkCheckpointed, Resume
from rollstream.sampler.decide.trainer.pool import AcknowledgeFetch, ResumePool
from rollstream.schemas.events import UnsealedGroups
from rollstream.streams.folds.refs import GroupRef
from rollstream.streams.owned.fold import SavedFold
from unit.sampler.test_saved_state import IDENTITY, PLACE

POOL: dict[str, Any] = {"order": "ready", "max_policy_lag": -1, "off_branch": "keep"}
FINAL_KEPT = 10
GROUPS = 10_000
A_FLUSH = 125
A_FETCH = 50
assert max(KNOWN_NEWEST_MAX, ROWS_NEWEST_MAX) < GROUPS // 2, "most are held compactly"


def _held_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.proves("B5")
def test_what_was_fetched_takes_no_memory_once_it_is_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{state.__name__}.FINAL_BATCHES_KEPT", FINAL_KEPT)  # May be asked for.
    sampler = Decider(**POOL)
    log = LOGS[1]
    flushes = [
        flush_of(
            [GroupSpec(example_id=f"ex-{n}", rewards=(1.0,)) for n in range(A_FLUSH)],
            name=str(number),
            now_ts=number,
        )
        for number in range(GROUPS // A_FLUSH)
    ]
    tracemalloc.start()
    try:
        empty = _held_bytes()
        for offset, flush in enumerate(flushes):
            sampler.state.apply_groups(log, offset, flush)
        full = _held_bytes() - empty
        for step in range(GROUPS * 9 // 10 // A_FETCH):
            batch = sampler.serve(step, A_FETCH)
            sampler.decide(Ack(step=step, batch_id=batch.batch_id))
            sampler.decide(MarkCheckpointed(step=step))
            sampler.events.clear()  # The log is no memory of the sampler's.
        left = _held_bytes() - empty
    finally:
        tracemalloc.stop()
    assert len(sampler.state.ready) == GROUPS // 10
    assert left < full / 2, (left, full)


def _entries(value: Any, seen: set[int]) -> Iterator[int]:
    """How many values each container has that an object consists of."""
    if id(value) in seen or isinstance(value, str | bytes | memoryview):
        return
    seen.add(id(value))
    if isinstance(value, dict):
        yield len(value)
        for one in (*value, *value.values()):
            yield from _entries(one, seen)
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield len(value)
        for one in value:
            yield from _entries(one, seen)
    elif hasattr(value, "__dict__"):
        yield from _entries(vars(value), seen)
    elif hasattr(value, "__slots__"):
        yield from (n for name in value.__slots__ for n in _entries(getattr(value, name), seen))
    elif hasattr(value, "__len__"):  # Arrays of numbers.
        yield len(value)


def _entries_of(state: SamplerState) -> int:
    return sum(_entries(state, set()))


def _consumed(prompts: int) -> Decider:
    """A pool of which so many prompts were fetched, each its own example, and nothing is left."""
    pool, log = Decider(**POOL), LOGS[1]
    pool.decide(ResumePool())
    for step in range(prompts):
        spec = GroupSpec(
            example_id=f"prompt-{step}", rewards=(1.0,), stop_reason="length", failed_members=1
        )
        never = UnsealedGroups(reason="expired", example_ids=(f"lost-{step}",))
        flush = flush_of([spec], name=str(step), now_ts=step * 10**7)
        flush = replace(flush, unsealed=(never,))
        pool.sealed.append((log, step, flush))
        pool.state.apply_groups(log, step, flush)
        batch = pool.serve(step, 1)
        pool.decide(AcknowledgeFetch(step=step, batch_id=batch.batch_id))
    assert len(pool.state.ready) == 0
    assert pool.progress().trained == {"math": {"": prompts}}
    assert pool.progress().never_back == {"math": {"": {"expired": prompts}}}
    assert pool.progress().unfinished == {"math": {"": {"failed": prompts, "truncated": prompts}}}
    return pool


@pytest.mark.proves("B5")
def test_what_was_fetched_leaves_nothing_in_the_state_of_a_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The newest of these are kept, in whatever order: so few that both pools have them all.
    monkeypatch.setattr(f"{state.__name__}.FINAL_BATCHES_KEPT", FINAL_KEPT)
    monkeypatch.setattr(f"{pace.__name__}.KEPT", FINAL_KEPT)
    monkeypatch.setattr(f"{recently_sealed.__name__}.SEALED_MAX", FINAL_KEPT)
    few, many = _consumed(50), _consumed(500)
    kept = _entries_of(few.state)
    assert _entries_of(many.state) == kept
    saved = b"".join(to_pieces(SavedFold(many.state, PLACE), IDENTITY))
    found = from_bytes(saved, IDENTITY, many.fresh()).fold
    replayed = many.fresh()  # As a start without a snapshot: the decisions first.
    for offset, event in enumerate(many.events):
        replayed.apply(offset, 0, event)
    for sealed in many.sealed:
        replayed.apply_groups(*sealed)
    assert replayed.digest() == found.digest() == many.state.digest()
    for again in (found, replayed):
        assert _entries_of(again) <= kept, "what is equal may be there once"


@pytest.mark.proves("B5")
def test_groups_of_a_log_that_is_no_longer_configured_leave_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing of them is to come, so what they ended as is not kept for it."""
    monkeypatch.setattr(f"{state.__name__}.FINAL_BATCHES_KEPT", FINAL_KEPT)
    monkeypatch.setattr(f"{pace.__name__}.KEPT", FINAL_KEPT)

    def entries(prompts: int) -> int:
        pool = _consumed(prompts)
        other = SamplerState("trainer", pool.state.choosing, LOGS[:1])
        for offset, event in enumerate(pool.events):
            other.apply(offset, 0, event)
        return _entries_of(other)

    # Which flush had how many: a row of two integers.
    assert entries(500) - entries(50) <= 450 * 3


def test_what_ended_before_a_pools_reader_began_is_counted_as_one_too() -> None:
    """In whatever order the logs are folded."""
    pool = Decider(**POOL, capacity_groups=1)
    pool.seal(*(GroupSpec(example_id=f"p{n}", failed_members=1) for n in range(3)))
    pool.evict()
    assert pool.progress().dropped == {"math": {f"p{n}": {"capacity": 1} for n in range(2)}}
    pool.decide(ResumePool())
    pool.seal(GroupSpec(example_id="later"))
    pool.evict()
    assert pool.progress().dropped == {"math": {"": {"capacity": 3}}}
    assert pool.progress().unfinished == {"math": {"": {"failed": 3}}}
    replayed = pool.fresh()
    for offset, event in enumerate(pool.events):
        replayed.apply(offset, 0, event)
    for sealed in pool.sealed:
        replayed.apply_groups(*sealed)
    assert replayed.digest() == pool.state.digest()


def test_a_trainer_with_the_settings_of_a_pool_keeps_its_progress_by_example() -> None:
    trainer = Decider(**POOL)
    trainer.decide(Resume(checkpointed_step=None))
    trainer.seal(GroupSpec(example_id="a"), GroupSpec(example_id="b"))
    batch = trainer.serve(0, 2)
    trainer.decide(Ack(step=0, batch_id=batch.batch_id))
    trainer.decide(MarkCheckpointed(step=0))
    assert trainer.progress().trained == {"math": {"a": 1, "b": 1}}


def test_a_full_pool_drops_the_oldest_that_waits_without_a_look_at_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[GroupRef] = []
    unpack = known_groups._unpack

    def counted(ref: GroupRef, *record: Any) -> Any:
        made.append(ref)
        return unpack(ref, *record)

    monkeypatch.setattr(known_groups, "NEWEST_MAX", 1)
    monkeypatch.setattr(known_groups, "_unpack", counted)
    pool = Decider(**POOL, capacity_groups=200)
    pool.decide(ResumePool())
    for flush in range(20):
        pool.seal(*[GroupSpec(example_id=f"{flush}-{n}", rewards=(None,)) for n in range(10)])
    pool.seal(GroupSpec(example_id="ready"), GroupSpec(example_id="waits", rewards=(None,)))
    made.clear()
    pool.evict()
    assert len({*made}) <= 2, "of those that are dropped alone"
    assert (len(pool.state.waiting), len(pool.state.ready)) == (199, 1)
    oldest = [GroupRef(*LOGS[1], 0, index) for index in range(2)]
    assert not any(ref in pool.state.waiting for ref in oldest)
    assert pool.progress().dropped == {"math": {"": {"capacity": 2}}}
