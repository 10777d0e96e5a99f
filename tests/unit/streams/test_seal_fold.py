"""The seal fold: settled offsets, watermark, dedupe, checkpoints."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.seal_events import flushed
from rollstream.schemas.events import (
    Adopted,
    Claimed,
    Event,
)
from rollstream.schemas.ids import segment_id
from rollstream.streams.errors import CorruptLog
from rollstream.streams.folds.seal import FLUSHES_KEPT_MIN, SealFold


def folded(*events: Event, dedupe_horizon: int = 100) -> SealFold:
    fold = SealFold(dedupe_horizon=dedupe_horizon)
    for offset, event in enumerate(events):
        fold.apply(offset, 0, event)
    return fold


CLAIM = Claimed(owner="a", nonce="n")


def test_offsets_below_the_watermark_and_settled_ones_above_it_are_settled() -> None:
    fold = folded(CLAIM, flushed(0, "n", [0, 1, 5], 2), flushed(0, "n", [9], 2))
    assert fold.watermark == 2
    assert [offset for offset in range(12) if fold.settled(offset)] == [0, 1, 5, 9]
    assert fold.settled_above().tolist() == [5, 9]


def test_a_flush_folded_in_the_middle_of_a_question_makes_no_answer_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fold = folded(CLAIM, flushed(0, "n", [5, 6, 7, 8], 0))
    search, flushes = np.searchsorted, [flushed(0, "n", [0, 1, 2, 3, 4], 9)]

    def search_while_another_thread_folds(*arguments: Any) -> Any:
        index = search(*arguments)
        if flushes:
            fold.apply(2, 0, flushes.pop())
        return index

    monkeypatch.setattr(np, "searchsorted", search_while_another_thread_folds)
    assert fold.settled(7)
    assert fold.watermark == 9


def test_the_watermark_moves_over_what_earlier_events_settled() -> None:
    fold = folded(CLAIM, flushed(0, "n", [1, 2, 5], 0), flushed(0, "n", [0], 3))
    assert fold.watermark == 3
    assert fold.settled_above().tolist() == [5]


def test_counts_are_by_what_became_of_rollouts() -> None:
    event = flushed(0, "n", [0, 1], 6, settled={"duplicate": [2, 3, 4], "dispatched": [5]})
    fold = folded(CLAIM, event)
    assert dict(fold.counts) == {"segments": 2, "groups": 0, "duplicate": 3, "dispatched": 1}


def test_log_time_never_goes_back() -> None:
    events = [flushed(0, "n", [n], n + 1, now_ts=ts) for n, ts in enumerate((5, 9, 7))]
    assert folded(CLAIM, *events).now_ts == 9


@pytest.mark.proves("I1")
@pytest.mark.parametrize(
    "second", [flushed(0, "n", [1], 2), flushed(0, "n", [4], 2), flushed(0, "n", [6, 6], 2)]
)
def test_settling_twice_is_a_corrupt_log(second: Event) -> None:
    fold = folded(CLAIM, flushed(0, "n", [0, 1, 4], 2))
    before = fold.digest()
    with pytest.raises(CorruptLog, match="a second time"):
        fold.apply(2, 0, second)
    assert fold.digest() == before


@pytest.mark.proves("I1")
@pytest.mark.parametrize("watermark", [3, 4, 100])
def test_a_watermark_past_what_nothing_settled_is_a_corrupt_log(watermark: int) -> None:
    with pytest.raises(CorruptLog, match="nothing settled"):
        folded(CLAIM, flushed(0, "n", [0, 1, 3], watermark))


def test_a_watermark_that_goes_back_is_a_corrupt_log() -> None:
    with pytest.raises(CorruptLog, match="goes back"):
        folded(CLAIM, flushed(0, "n", [0, 1], 2), flushed(0, "n", [2], 1))


def test_an_adoption_that_contradicts_the_log_is_a_corrupt_log() -> None:
    wrong = Adopted(epoch=2, nonce="m", fold_from=0, watermark=5, counts={})
    again = Claimed(owner="b", nonce="m")
    with pytest.raises(CorruptLog, match="adopts watermark 5, not 2"):
        folded(CLAIM, flushed(0, "n", [0, 1], 2), again, wrong)


@pytest.mark.proves("A4")
def test_segments_are_seen_by_uid_and_number() -> None:
    event = flushed(0, "n", [0, 1, 2], 3, uids=["x", "x", "y"], segments=[0, 1, 3])
    fold = folded(CLAIM, event)
    seen = [("x", 0), ("x", 1), ("y", 3)]
    assert all(fold.seen(segment_id(uid, segment)) for uid, segment in seen)
    assert not any(fold.seen(segment_id(*key)) for key in [("x", 2), ("y", 0), ("z", 0)])


@pytest.mark.proves("A4")
def test_a_duplicate_says_nothing_of_an_original_that_may_be_pending() -> None:
    reasons = {"stale": [0], "duplicate": [1]}
    uids = {"stale": ["old"], "duplicate": ["pending"]}
    fold = folded(CLAIM, flushed(0, "n", [], 2, settled=reasons, settled_uids=uids))
    assert fold.seen("old")
    assert not fold.seen("pending")


@pytest.mark.proves("A4", "I8")
def test_uids_are_remembered_for_the_horizon_and_then_forgotten() -> None:
    fold = SealFold(dedupe_horizon=10)
    fold.apply(0, 0, CLAIM)
    for number in range(200):
        fold.apply(number + 1, 0, flushed(0, "n", [number], number + 1))
        newest = [n for n in range(number + 1) if n >= fold.watermark - 10]
        assert all(fold.seen(f"u{n}") for n in newest)
    remembered = [n for n in range(200) if fold.seen(f"u{n}")]
    assert len(remembered) <= 10 + FLUSHES_KEPT_MIN
    assert len(fold.flushes) <= 10 + FLUSHES_KEPT_MIN


def test_a_uid_that_came_again_is_remembered_from_its_newest_time() -> None:
    fold = SealFold(dedupe_horizon=20)
    fold.apply(0, 0, CLAIM)
    for number in range(100):
        uids = ["again"] if number in (0, 60) else None
        fold.apply(number + 1, 0, flushed(0, "n", [number], number + 1, uids=uids))
        if number == 79:
            assert fold.seen("again")
    assert not fold.seen("again")


def test_events_that_settle_nothing_change_nothing() -> None:
    fold = folded(CLAIM, flushed(0, "n", [0, 3], 1))
    before = fold.digest()
    others: list[Event] = [
        Claimed(owner="b", nonce="m"),
    ]
    for offset, event in enumerate(others, start=2):
        fold.apply(offset, 0, event)
    assert fold.digest() == before


# --- checkpoints ---


class Entry(NamedTuple):
    offset: int
    event: Event


def log_of_sealers(seed: int) -> tuple[list[Entry], int]:
    """A log as sealers write it, some of which died before they adopted; and the horizon."""
    dice = random.Random(seed)
    horizon = dice.randrange(40)
    fold = SealFold(dedupe_horizon=horizon)
    entries: list[Entry] = []
    claims: list[int] = []
    unsettled = list(range(12))
    beyond = 12

    def add(event: Event) -> None:
        # Zombies' records leave gaps between the offsets that count.
        offset = entries[-1].offset + dice.choice((1, 1, 1, 3)) if entries else 0
        entries.append(Entry(offset, event))
        fold.apply(offset, 0, event)

    def claim() -> None:
        adopted = False
        while not adopted:
            add(Claimed(owner="x", nonce="n"))
            claims.append(entries[-1].offset)
            adopted = dice.randrange(4) > 0
        checkpoint = fold.checkpoint(claims)
        assert checkpoint.fold_from in claims
        add(Adopted(epoch=claims[-1], nonce="n", **checkpoint._asdict()))

    claim()
    for _ in range(dice.randrange(120)):
        if dice.randrange(8) == 0:
            claim()
            continue
        chosen = [n for n in unsettled[:10] if dice.random() < 0.5]
        unsettled = [n for n in unsettled if n not in chosen]
        unsettled += range(beyond, beyond + len(chosen))
        beyond += len(chosen)
        sealed, other = chosen[::2], chosen[1::2]
        event = flushed(
            claims[-1],
            "n",
            sealed,
            unsettled[0],
            uids=[f"u{dice.randrange(30)}" for _ in sealed],
            segments=[dice.randrange(2) for _ in sealed],
            settled={"stale": other} if other else {},
            now_ts=dice.randrange(50),
        )
        add(event)
    return entries, horizon


@pytest.mark.proves("I5")
@given(st.integers(0, 2**32))
def test_a_fold_from_any_checkpoint_equals_the_whole_fold(seed: int) -> None:
    entries, horizon = log_of_sealers(seed)
    whole = SealFold(dedupe_horizon=horizon)
    for offset, event in entries:
        whole.apply(offset, 0, event)
    starts = {event.fold_from for _, event in entries if isinstance(event, Adopted)}
    for start in starts:
        piece = SealFold(dedupe_horizon=horizon)
        for offset, event in entries:
            if offset >= start:
                piece.apply(offset, 0, event)
        assert piece.digest() == whole.digest()
        assert piece.watermark == whole.watermark
        assert piece.now_ts == whole.now_ts
        assert +piece.counts == +whole.counts  # type: ignore[operator]
        assert piece.flushes == whole.flushes
        assert np.array_equal(piece.settled_above(), whole.settled_above())
        for uid in range(31):
            assert piece.seen(f"u{uid}") == whole.seen(f"u{uid}")
            assert piece.seen(segment_id(f"u{uid}", 1)) == whole.seen(segment_id(f"u{uid}", 1))


def test_digests_tell_states_apart() -> None:
    base = folded(CLAIM, flushed(0, "n", [0, 1], 2))
    others = [
        folded(CLAIM, flushed(0, "n", [0, 1], 1)),
        folded(CLAIM, flushed(0, "n", [0, 1, 4], 2)),
        folded(CLAIM, flushed(0, "n", [0, 1], 2, now_ts=1)),
        folded(CLAIM, flushed(0, "n", [0, 1], 2, uids=["a", "b"])),
        folded(CLAIM, flushed(0, "n", [0], 2, settled={"stale": [1]})),
    ]
    assert len({fold.digest() for fold in (base, *others)}) == 6
    assert folded(CLAIM, flushed(0, "n", [0, 1], 2)).digest() == base.digest()
