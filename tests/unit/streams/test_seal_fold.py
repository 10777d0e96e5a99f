"""The seal fold: settled entries, watermark, dedupe, checkpoints."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.retiring import requested, retired
from harness.seal_events import flushed
from harness.sealed_state import digest_of
from rollstream.schemas.events import (
    Adopted,
    Claimed,
    Event,
    TouchedOffsets,
)
from rollstream.schemas.ids import segment_id
from rollstream.schemas.ingest.entry import ENTRIES_MAX
from rollstream.streams.errors import CorruptLog
from rollstream.streams.folds.entries import Entries
from rollstream.streams.folds.seal import FLUSHES_KEPT_MIN, REQUESTS_KEPT_MAX, SealFold


def folded(*events: Event, dedupe_horizon: int = 100) -> SealFold:
    fold = SealFold(dedupe_horizon=dedupe_horizon)
    for offset, event in enumerate(events):
        fold.apply(offset, 0, event)
    return fold


CLAIM = Claimed(owner="a", nonce="n")


def test_offsets_below_the_watermark_and_settled_ones_above_it_are_settled() -> None:
    fold = folded(CLAIM, flushed(0, "n", [0, 1, 5], 2), flushed(0, "n", [9], 2))
    assert fold.watermark == 2
    assert [offset for offset in range(12) if fold.settled(offset, 0)] == [0, 1, 5, 9]
    assert [offset for offset in range(2, 12) if fold.known(offset) == (1, {0})] == [5, 9]
    assert fold.replay_until == 10


def test_entries_of_one_offset_are_settled_each_by_itself() -> None:
    first = flushed(0, "n", [(3, 0), (3, 2)], 0, counts={3: 4})
    second = flushed(0, "n", [(4, 0), (3, 3)], 0, counts={3: 4, 4: 2})
    fold = folded(CLAIM, first, second)
    assert [entry for entry in range(5) if fold.settled(3, entry)] == [0, 2, 3]
    assert [offset for offset in range(6) if fold.settled(offset, 0)] == [3, 4]
    known = [fold.known(offset) for offset in (2, 3, 4, 5)]
    assert known == [(0, set()), (4, {0, 2, 3}), (2, {0}), (0, set())]
    assert fold.replay_until == 5

    fold.apply(3, 0, flushed(0, "n", [(3, 1)], 0, counts={3: 4}))
    assert [fold.known(offset) for offset in (3, 4)] == [(4, {0, 1, 2, 3}), (2, {0})]


def test_nothing_is_replayed_where_nothing_was_settled_above_the_watermark() -> None:
    assert folded(CLAIM).replay_until == 0
    assert folded(CLAIM, flushed(0, "n", [0, 1], 2)).replay_until == 2


def test_what_a_replay_asks_costs_no_more_where_more_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fold = folded(CLAIM, flushed(0, "n", [3, 5], 0))

    def looks_at_all(known: Entries, offset: int) -> NoReturn:
        pytest.fail(f"all that is known was looked at for offset {offset}")

    monkeypatch.setattr(Entries, "split", looks_at_all)
    assert [fold.known(offset) for offset in (2, 3, 4, 5)] == [(0, set()), (1, {0})] * 2


@pytest.mark.parametrize("last", [0, 499, ENTRIES_MAX - 1])
def test_offsets_next_to_each_other_keep_their_entries_apart(last: int) -> None:
    event = flushed(0, "n", [(6, last), (7, 0)], 0, counts={6: ENTRIES_MAX, 7: ENTRIES_MAX})
    fold = folded(CLAIM, event)
    assert [fold.known(offset) for offset in (6, 7)] == [(ENTRIES_MAX, {last}), (ENTRIES_MAX, {0})]


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
    assert fold.settled(7, 0)
    assert fold.watermark == 9


def test_the_watermark_moves_over_what_earlier_events_settled() -> None:
    fold = folded(CLAIM, flushed(0, "n", [1, 2, 5], 0), flushed(0, "n", [0], 3))
    assert fold.watermark == 3
    assert [offset for offset in range(8) if fold.settled(offset, 0)] == [0, 1, 2, 5]


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
    before = digest_of(fold)
    with pytest.raises(CorruptLog, match="a second time"):
        fold.apply(2, 0, second)
    assert digest_of(fold) == before


@pytest.mark.proves("I1")
def test_settling_an_entry_twice_is_a_corrupt_log() -> None:
    first = flushed(0, "n", [(0, 0), (0, 2)], 0, counts={0: 3})
    fold = folded(CLAIM, first)
    with pytest.raises(CorruptLog, match="entry 2 of source offset 0 is settled a second time"):
        fold.apply(2, 0, flushed(0, "n", [(0, 1), (0, 2)], 0, counts={0: 3}))
    fold.apply(2, 0, flushed(0, "n", [(0, 1)], 1, counts={0: 3}))
    assert fold.watermark == 1


@pytest.mark.proves("I1")
def test_the_watermark_never_passes_an_offset_with_499_of_500_entries_settled() -> None:
    sealed = [(0, entry) for entry in range(500) if entry != 250]
    with pytest.raises(CorruptLog, match=r"over 0 offsets .* and 1 entries"):
        folded(CLAIM, flushed(0, "n", sealed, 1, counts={0: 500}))
    first = flushed(0, "n", sealed, 0, counts={0: 500})
    for others in ([], [1], [1, 2]):
        with pytest.raises(CorruptLog, match="1 entries of others"):
            folded(CLAIM, first, flushed(0, "n", others, 1 + len(others)))
    last = flushed(0, "n", [], 1, settled={"failed": [(0, 250)]}, counts={0: 500})
    assert folded(CLAIM, first, last).watermark == 1


@pytest.mark.proves("I1")
def test_numbers_of_entries_that_differ_between_events_are_a_corrupt_log() -> None:
    fold = folded(CLAIM, flushed(0, "n", [(0, 0), (9, 1)], 0, counts={0: 3, 9: 2}))
    before = digest_of(fold)
    for count in (2, 4):
        with pytest.raises(CorruptLog, match=r"offset 0 has .* entries by one event"):
            fold.apply(2, 0, flushed(0, "n", [(0, 1)], 0, counts={0: count}))
    assert digest_of(fold) == before


@pytest.mark.proves("I1")
@pytest.mark.parametrize(
    ("offsets", "counts", "message"),
    [
        ([], [], "not those that it says"),
        ([2], [2], "not those that it says"),
        ([2, 3, 5], [2, 1, 1], "not those that it says"),
        ([3, 2], [1, 2], "not those that it says"),
        ([2, 3], [1, 1], "entry 1 of source offset 2 is settled; it says of 1 entries"),
        ([2, 3], [2, 0], "entry 0 of source offset 3 is settled; it says of 0 entries"),
        ([2, 3], [ENTRIES_MAX + 1, 1], "it says of 65537 entries"),
    ],
)
def test_an_event_whose_entries_are_not_of_what_it_touches_is_a_corrupt_log(
    offsets: list[int], counts: list[int], message: str
) -> None:
    sound = flushed(0, "n", [(2, 0), (2, 1), (3, 0)], 0, counts={2: 2})
    touched = TouchedOffsets(offsets=np.array(offsets, np.int64), counts=np.array(counts, np.int32))
    assert folded(CLAIM, sound).known(2) == (2, {0, 1})
    with pytest.raises(CorruptLog, match=message):
        folded(CLAIM, replace(sound, touched=touched))


@pytest.mark.proves("I1")
@pytest.mark.parametrize("entry", [-1, ENTRIES_MAX])
def test_an_entry_with_a_number_that_no_record_has_is_a_corrupt_log(entry: int) -> None:
    sound = flushed(0, "n", [2, 3], 0)
    wrong = replace(sound.segments, entries=np.array([0, entry], np.int32))
    with pytest.raises(CorruptLog):
        folded(CLAIM, replace(sound, segments=wrong))


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
    assert all(fold.seen_among([segment_id(uid, segment)]) for uid, segment in seen)
    assert not any(fold.seen_among([segment_id(*key)]) for key in [("x", 2), ("y", 0), ("z", 0)])


@pytest.mark.proves("A4")
def test_a_duplicate_says_nothing_of_an_original_that_may_be_pending() -> None:
    reasons = {"stale": [0], "duplicate": [1]}
    uids = {"stale": ["old"], "duplicate": ["pending"]}
    fold = folded(CLAIM, flushed(0, "n", [], 2, settled=reasons, settled_uids=uids))
    assert fold.seen_among(["old"])
    assert not fold.seen_among(["pending"])


@pytest.mark.proves("A4", "I8")
def test_uids_are_remembered_for_the_horizon_and_then_forgotten() -> None:
    fold = SealFold(dedupe_horizon=10)
    fold.apply(0, 0, CLAIM)
    for number in range(200):
        fold.apply(number + 1, 0, flushed(0, "n", [number], number + 1))
        newest = [n for n in range(number + 1) if n >= fold.watermark - 10]
        assert all(fold.seen_among([f"u{n}"]) for n in newest)
    remembered = [n for n in range(200) if fold.seen_among([f"u{n}"])]
    assert len(remembered) <= 10 + FLUSHES_KEPT_MIN
    assert len(fold.flushes) <= 10 + FLUSHES_KEPT_MIN


@pytest.mark.proves("A4", "I8")
def test_the_dedupe_horizon_counts_entries_and_not_offsets() -> None:
    per_record, horizon = 64, 64 * (FLUSHES_KEPT_MIN + 4)
    fold = SealFold(dedupe_horizon=horizon)
    fold.apply(0, 0, CLAIM)
    for number in range(100):
        sealed = [(number, entry) for entry in range(per_record)]
        counts = {number: per_record}
        fold.apply(number + 1, 0, flushed(0, "n", sealed, number + 1, counts=counts))
    records = horizon // per_record
    remembered = [n for n in range(100) if fold.seen_among([f"u{n}.0"])]
    assert remembered == list(range(100 - records, 100))


@pytest.mark.proves("A4")
def test_uids_above_the_watermark_are_remembered_beyond_the_horizon() -> None:
    fold = folded(CLAIM, dedupe_horizon=1)
    for number in range(1, 100):
        fold.apply(number, 0, flushed(0, "n", [number], 0))
    assert all(fold.seen_among([f"u{n}"]) for n in range(1, 100))
    fold.apply(100, 0, flushed(0, "n", [0], 100))
    assert not fold.seen_among(["u1"])


def test_a_uid_that_came_again_is_remembered_from_its_newest_time() -> None:
    fold = SealFold(dedupe_horizon=20)
    fold.apply(0, 0, CLAIM)
    for number in range(100):
        uids = ["again"] if number in (0, 60) else None
        fold.apply(number + 1, 0, flushed(0, "n", [number], number + 1, uids=uids))
        if number == 79:
            assert fold.seen_among(["again"])
    assert not fold.seen_among(["again"])


def test_events_that_settle_nothing_change_nothing() -> None:
    fold = folded(CLAIM, flushed(0, "n", [0, 3], 1))
    before = digest_of(fold)
    others: list[Event] = [
        Claimed(owner="b", nonce="m"),
    ]
    for offset, event in enumerate(others, start=2):
        fold.apply(offset, 0, event)
    assert digest_of(fold) == before


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
    # Records of 1 to 3 entries each.
    counts = {offset: dice.randrange(1, 4) for offset in range(2000)}
    entries_to_come = ((o, entry) for o, count in counts.items() for entry in range(count))
    unsettled = [next(entries_to_come) for _ in range(12)]

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

    asked: list[int] = []
    claim()
    for _ in range(dice.randrange(120)):
        if dice.randrange(8) == 0:
            claim()
            continue
        if dice.randrange(8) == 0:
            add(requested())
            asked.append(entries[-1].offset)
        if dice.randrange(8) == 0:
            answered = asked.pop(dice.randrange(len(asked))) if asked else -1
            files = [(claims[-1], "a.parquet")] if dice.randrange(2) else []
            add(retired(claims[-1], "n", files, request=answered))
        chosen = [n for n in unsettled[:10] if dice.random() < 0.5]
        unsettled = [n for n in unsettled if n not in chosen]
        unsettled += islice(entries_to_come, len(chosen))
        sealed, other = chosen[::2], chosen[1::2]
        event = flushed(
            claims[-1],
            "n",
            sealed,
            unsettled[0][0],
            uids=[f"u{dice.randrange(30)}" for _ in sealed],
            segments=[dice.randrange(2) for _ in sealed],
            settled={"stale": other} if other else {},
            now_ts=dice.randrange(50),
            counts=counts,
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
        assert digest_of(piece) == digest_of(whole)
        assert piece.watermark == whole.watermark
        assert piece.now_ts == whole.now_ts
        assert +piece.counts == +whole.counts  # type: ignore[operator]
        assert piece.flushes == whole.flushes
        assert (piece.retired, piece.requests) == (whole.retired, whole.requests)
        assert piece.replay_until == whole.replay_until
        for above in range(whole.watermark, whole.replay_until):
            assert piece.known(above) == whole.known(above)
        for uid in range(31):
            assert piece.seen_among([f"u{uid}"]) == whole.seen_among([f"u{uid}"])
            assert piece.seen_among([segment_id(f"u{uid}", 1)]) == whole.seen_among(
                [segment_id(f"u{uid}", 1)]
            )


def test_digests_tell_states_apart() -> None:
    base = folded(CLAIM, flushed(0, "n", [0, 1], 2))
    others = [
        folded(CLAIM, flushed(0, "n", [0, 1], 1)),
        folded(CLAIM, flushed(0, "n", [0, 1, 4], 2)),
        folded(CLAIM, flushed(0, "n", [0, 1], 2, now_ts=1)),
        folded(CLAIM, flushed(0, "n", [0, 1], 2, uids=["a", "b"])),
        folded(CLAIM, flushed(0, "n", [0], 2, settled={"stale": [1]})),
        folded(CLAIM, flushed(0, "n", [0, 1, (4, 0)], 2, counts={4: 2})),
        folded(CLAIM, flushed(0, "n", [0, 1, (4, 1)], 2, counts={4: 2})),
    ]
    assert len({digest_of(fold) for fold in (base, *others)}) == 8
    assert digest_of(folded(CLAIM, flushed(0, "n", [0, 1], 2))) == digest_of(base)


def test_a_request_is_open_until_the_last_event_of_its_answer() -> None:
    fold = folded(CLAIM, requested(1.0), requested(2.0), retired(0, "n", request=1, more=True))
    assert [asked.event.older_than_us for asked in fold.requests.values()] == [1_000_000, 2_000_000]
    fold.apply(4, 0, retired(0, "n", request=1))
    assert list(fold.requests) == [2]
    assert fold.retired == -1, "nothing was retired"


def test_only_the_newest_requests_are_kept() -> None:
    fold = folded(CLAIM, *[requested()] * (REQUESTS_KEPT_MAX + 3))
    assert list(fold.requests) == list(range(4, REQUESTS_KEPT_MAX + 4))


def test_an_open_request_keeps_the_claim_before_it() -> None:
    events: list[Event] = [CLAIM, requested(), *[flushed(0, "n", [i], i + 1) for i in range(40)]]
    assert folded(*events, dedupe_horizon=0).checkpoint([0, 30]).fold_from == 0
    events.append(retired(0, "n", request=1))
    assert folded(*events, dedupe_horizon=0).checkpoint([0, 20, 42]).fold_from == 20
