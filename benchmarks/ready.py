"""Measures what ready groups take in memory, what deciding among them costs, and a start.

``python -m benchmarks.ready``: groups of eight with distinct examples go through the fold of a
sampler, which then decides about batches of 64 among 10 thousand, 100 thousand and a million. It
decides also among 20 thousand of 100 examples, by settings that leave groups out. Then ``--sealed``
groups, of which all but 50 thousand were served, are folded from their events' bytes as a start
without a snapshot folds them; then the state is read from a snapshot's bytes. Without Kafka and
without files; the time is the processor's.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import psutil

from benchmarks.folds import BATCH_GROUPS, CHOOSING, GROUP_SIZE, LOG, flushes
from rollstream.folds.saved_state import copied, from_bytes, to_pieces
from rollstream.folds.state import SamplerState
from rollstream.runtime.collection import without_collection
from rollstream.sampler.decide.batches.next_batch import NextBatch
from rollstream.sampler.decide.command import Now
from rollstream.sampler.decide.trainer.commands import MarkCheckpointed
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
NOW = Now(epoch=0, nonce="bench", now_ts=0)
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


def sealed(groups: int) -> Iterator[Flushed]:
    """Flushes with ids and uids as long as real ones, and examples that come once."""
    for event in flushes(groups * GROUP_SIZE):
        named = tuple(
            one._replace(group_id=_hex(one.group_id), example_id=_hex(f"of {one.group_id}"))
            for one in event.groups
        )
        uids = tuple(map(_hex, event.segments.uids))
        yield replace(event, groups=named, segments=replace(event.segments, uids=uids))


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
            named = enumerate(event.groups)
            few = tuple(one._replace(example_id=str(n % EXAMPLES)) for n, one in named)
            state.apply_groups(LOG, offset, replace(event, groups=few))
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


def _serve(state: SamplerState, decisions: Iterator[int]) -> list[bytes]:
    """The next batch, applied; its events' bytes."""
    events = NextBatch(step=state.next_step, num_groups=BATCH_GROUPS).decide(state, NOW)
    for event in events:
        state.apply(next(decisions), 0, event)
    return list(map(codec.encode, events))


def measure_start(groups: int) -> tuple[float, float, float, int]:
    """Seconds to fold so many groups from bytes, to copy the state, and to read it from a snapshot;
    its bytes."""
    state, decisions = empty(10**9), count()
    logged: list[bytes] = []
    flushed: list[bytes] = []
    for offset, event in enumerate(sealed(groups)):
        flushed.append(codec.encode(event))
        state.apply_groups(LOG, offset, event)
        while len(state.ready) >= LEFT_READY + BATCH_GROUPS:
            logged += _serve(state, decisions)
        done = MarkCheckpointed(step=state.next_step - 1)
        for final in done.decide(state, NOW) if state.batches else ():
            state.apply(next(decisions), 0, final)
            logged.append(codec.encode(final))
    digest = state.digest()
    anew = empty(10**9)
    begun_s = time.process_time()
    with without_collection():
        for offset, value in enumerate(logged):
            anew.apply(offset, 0, codec.decode(value))
        for offset, value in enumerate(flushed):
            anew.apply_groups(LOG, offset, codec.decode(value))
    fold_s = time.process_time() - begun_s
    assert anew.digest() == digest
    begun_s = time.process_time()
    copy = copied(anew)
    copy_s = time.process_time() - begun_s
    data = b"".join(to_pieces(SavedFold(copy, PLACE), {}))
    begun_s = time.process_time()
    found = from_bytes(data, {}, empty(10**9))
    load_s = time.process_time() - begun_s
    assert found.fold.digest() == digest
    return fold_s, copy_s, load_s, len(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sealed", type=int, default=1_000_000, help="groups of the start")
    parser.add_argument("--start-only", action="store_true", help="nothing but the start")
    arguments = parser.parse_args()
    if not arguments.start_only:
        _print_ready()
    fold_s, copy_s, load_s, size = measure_start(arguments.sealed)
    print(
        f"start with {arguments.sealed:,} sealed and {LEFT_READY:,} ready: {fold_s:.1f} s from the "
        f"logs' bytes, {1e6 * fold_s / arguments.sealed:.1f} us a group; {load_s:.2f} s from a "
        f"snapshot of {size / 2**20:.1f} MiB, whose copy took {1e3 * copy_s:.0f} ms"
    )


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
