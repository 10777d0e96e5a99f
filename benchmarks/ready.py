"""Measures what ready groups take in memory, what deciding among them costs, and a start.

``python -m benchmarks.ready``: groups of eight with distinct examples go through the fold of a
sampler, which then decides about batches of 64 among 10 thousand, 100 thousand and a million. It
decides also among 20 thousand of 100 examples, by settings that leave groups out. Then ``--sealed``
groups, of which all but 50 thousand were served, are folded from their events' bytes as a start
without a snapshot folds them; then the state is read from a snapshot's bytes. ``--sealed 10000000``
takes about 3 GB. Without Kafka and without files; the time is the processor's, and does not include
what it takes to make the events.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import psutil

from benchmarks.folds import BATCH_GROUPS, CHOOSING, GROUP_SIZE, LOG, flushes
from benchmarks.history import NOW, decision_values, flush_values
from rollstream.folds.saved_state import copied, from_bytes, to_pieces
from rollstream.folds.state import SamplerState
from rollstream.runtime.collection import without_collection
from rollstream.sampler.decide.batches.next_batch import NextBatch
from rollstream.schemas import codec
from rollstream.schemas.events import Claimed, Flushed
from rollstream.streams.owned.fold import FoldPlace, SavedFold

READY = (10_000, 100_000, 1_000_000)
LEFT_READY = 50_000
DECISIONS = 40
WARM_UP_GROUPS = 1_280
FILTERED, EXAMPLES = 20_000, 100
AGES = FILTERED // BATCH_GROUPS  # Steps of the policies that sampled these.
SETTINGS: dict[str, dict[str, Any]] = {
    "none is left out": {},
    "the newest policy first": {"on_policy_fraction": 0.5},
    "2,000 are stale": {"max_policy_lag": AGES - 2_000 // BATCH_GROUPS},
    "20,000 are stale": {"max_policy_lag": 0},
}
PLACE = FoldPlace(1, bytes(16), (0, Claimed(owner="bench", nonce="bench")), (0,))


class Row(NamedTuple):
    """With so many ready groups.

    Attributes:
        group_bytes: resident memory since there was none, a group.
        fold_us: a rollout, of the newest ones.
        decide_ms: a batch of 64 groups, decided and applied; the median.
    """

    ready: int
    group_bytes: float
    fold_us: float
    decide_ms: float


class Folded(NamedTuple):
    """Seconds of the events of one kind of log."""

    decode_s: float
    apply_s: float


class Start(NamedTuple):
    """Of a start from the logs, and of one from a snapshot.

    Attributes:
        copy_s: for which deciding stops while a snapshot begins to be written.
        load_s: from the snapshot's bytes to a state.
        resident_mib: of the process, with both states and the snapshot.
    """

    decisions: Folded
    flushes: Folded
    copy_s: float
    load_s: float
    snapshot_bytes: int
    resident_mib: float


def sealed(count: int) -> Iterator[Flushed]:
    """Flushes with ids and uids as long as real ones, and examples that come once."""
    for event in flushes(count * GROUP_SIZE):
        names = event.groups.group_ids
        groups = replace(
            event.groups,
            group_ids=tuple(map(_hex, names)),
            example_ids=tuple(_hex(f"of {name}") for name in names),
        )
        uids = tuple(map(_hex, event.segments.uids))
        yield replace(event, groups=groups, segments=replace(event.segments, uids=uids))


def _hex(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def empty(capacity_groups: int) -> SamplerState:
    choosing = replace(CHOOSING, capacity_groups=capacity_groups, max_open_batches=10**6)
    return SamplerState("trainer", choosing, [LOG])


def measure_ready() -> Iterator[Row]:
    """A row for each number of ready groups."""
    warm = empty(10**9)
    for offset, event in enumerate(sealed(WARM_UP_GROUPS)):
        warm.apply_groups(LOG, offset, event)
    process, state = psutil.Process(), empty(10**9)
    del warm
    gc.collect()
    before, fold_s, since, decisions = process.memory_info().rss, 0.0, 0, count()
    ready = iter(READY)
    most = next(ready)
    for offset, event in enumerate(sealed(READY[-1] + LEFT_READY)):
        begun_s = time.process_time()
        state.apply_groups(LOG, offset, event)
        fold_s += time.process_time() - begun_s
        since += len(event.groups)
        if len(state.ready) < most:
            continue
        gc.collect()
        group_bytes = (process.memory_info().rss - before) / len(state.ready)
        fold_us = 1e6 * fold_s / since / GROUP_SIZE
        yield Row(len(state.ready), group_bytes, fold_us, 1e3 * _decide_s(state, decisions))
        fold_s, since = 0.0, 0
        found = next(ready, None)
        if found is None:
            return
        most = found


def measure_filtered() -> Iterator[tuple[str, float]]:
    """Milliseconds of a decision by each of the settings, which is not applied; the median."""
    for name, settings in SETTINGS.items():
        state = empty(10**9)
        state.choosing = replace(state.choosing, **settings)
        state._life.next_step = AGES
        for offset, event in enumerate(flushes(FILTERED * GROUP_SIZE)):
            few = tuple(str(number % EXAMPLES) for number in range(len(event.groups)))
            groups = replace(event.groups, example_ids=few)
            state.apply_groups(LOG, offset, replace(event, groups=groups))
        took_s = []
        for _ in range(DECISIONS):
            begun_s = time.process_time()
            NextBatch(step=AGES, num_groups=BATCH_GROUPS).decide(state, NOW)
            took_s.append(time.process_time() - begun_s)
        yield name, 1e3 * sorted(took_s)[DECISIONS // 2]


def _decide_s(state: SamplerState, decisions: Iterator[int]) -> float:
    took_s = []
    for _ in range(DECISIONS):
        begun_s = time.process_time()
        _serve(state, decisions)
        took_s.append(time.process_time() - begun_s)
    return sorted(took_s)[DECISIONS // 2]


def _serve(state: SamplerState, decisions: Iterator[int]) -> None:
    """The next batch, applied."""
    events = NextBatch(step=state.next_step, num_groups=BATCH_GROUPS).decide(state, NOW)
    for event in events:
        state.apply(next(decisions), 0, event)


def measure_start(groups: int) -> Start:
    """Folds a history of so many groups, the decisions first as a sampler does, and then makes a
    snapshot and reads it."""
    state = empty(10**9)
    with without_collection():
        decided = _fold(
            decision_values(groups, LEFT_READY), lambda at, one: state.apply(at, 0, one)
        )
        flushed = _fold(flush_values(groups), lambda at, one: state.apply_groups(LOG, at, one))
    digest = state.digest()
    begun_s = time.process_time()
    copy = copied(state)
    copy_s = time.process_time() - begun_s
    data = b"".join(to_pieces(SavedFold(copy, PLACE), {}))
    begun_s = time.process_time()
    found = from_bytes(data, {}, empty(10**9))
    load_s = time.process_time() - begun_s
    assert found.fold.digest() == digest
    resident_mib = psutil.Process().memory_info().rss / 2**20
    return Start(decided, flushed, copy_s, load_s, len(data), resident_mib)


def _fold(values: Iterator[bytes], apply: Callable[[int, Any], None]) -> Folded:
    """Seconds that decoding and applying took, without what it takes to make the bytes."""
    decode_s = apply_s = 0.0
    for offset, value in enumerate(values):
        begun_s = time.process_time()
        event = codec.decode(value)
        decoded_s = time.process_time()
        apply(offset, event)
        decode_s += decoded_s - begun_s
        apply_s += time.process_time() - decoded_s
    return Folded(decode_s, apply_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sealed", type=int, default=1_000_000, help="groups of the start")
    parser.add_argument("--start-only", action="store_true", help="nothing but the start")
    arguments = parser.parse_args()
    if not arguments.start_only:
        _print_ready()
    _print_start(arguments.sealed, measure_start(arguments.sealed))


def _print_start(groups: int, start: Start) -> None:
    total_s = sum(start.decisions) + sum(start.flushes)
    print(
        f"start with {groups:,} sealed and {LEFT_READY:,} ready: {total_s:.1f} s from the logs' "
        f"bytes, {1e6 * total_s / groups:.1f} us a group; {start.load_s:.2f} s from a snapshot of "
        f"{start.snapshot_bytes / 2**20:.1f} MiB, whose copy took {1e3 * start.copy_s:.0f} ms; "
        f"{start.resident_mib:.0f} MiB resident"
    )
    for name, folded in (("decisions", start.decisions), ("flushes", start.flushes)):
        decode_us, apply_us = (1e6 * took_s / groups for took_s in folded)
        print(f"{name:>10}: {decode_us:.1f} us a group to decode, {apply_us:.1f} to fold")


def _print_ready() -> None:
    print(f"{'ready':>10} {'bytes a group':>14} {'us a rollout':>13} {'ms a decision':>14}")
    for row in measure_ready():
        print(
            f"{row.ready:10,} {row.group_bytes:14.0f} {row.fold_us:13.2f} {row.decide_ms:14.2f}",
            flush=True,
        )
    for name, decide_ms in measure_filtered():
        print(f"{FILTERED:10,} of {EXAMPLES} examples, {name}: {decide_ms:.2f} ms", flush=True)


if __name__ == "__main__":
    main()
