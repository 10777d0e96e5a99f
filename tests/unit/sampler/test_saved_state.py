"""A sampler's state as bytes: equal when read again, and refused where anything is wrong."""

from __future__ import annotations

import contextlib
import json
import pickle
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import fold_version
from harness.decider import LOGS, Decider
from harness.examples import examples
from harness.fold_version import GoldenEvents, fold_sources, golden_runs, state_beside
from harness.groups import GroupSpec
from harness.source_tree import all_sources, imports, package_folder
from rollstream.folds import saved_state
from rollstream.folds.choosing import choosing_of
from rollstream.folds.saved_state import (
    UnusableState,
    copied,
    from_bytes,
    to_pieces,
)
from rollstream.folds.state import SamplerState
from rollstream.runtime.config.sections import EnvironmentConfig, SamplerConfig
from rollstream.sampler.errors import TooManyOpenBatches
from rollstream.schemas.events import Claimed
from rollstream.streams.owned.fold import FoldPlace, SavedFold
from unit.sampler.test_deciding_properties import drive, seal_logs, steps

PLACE = FoldPlace(7, b"record", (3, Claimed(owner="a", nonce="n", root_id="r")), (0, 3))
IDENTITY = {"sampler": "trainer-a", "log": "rollstream.sampler.trainer-a.1", "root_id": "r"}

# What a fold is configured with is compared; errors and records are what it is given or raises.
NO_FOLD = ("rollstream.runtime", "rollstream.streams.errors", "rollstream.streams.broker")


def decided() -> Decider:
    sampler = Decider(max_open_batches=4)
    sampler.seal(*[GroupSpec(example_id=name) for name in "abcdef"])
    sampler.serve(0)
    sampler.serve(1)
    return sampler


def saved(state: SamplerState) -> bytes:
    return b"".join(to_pieces(SavedFold(state, PLACE), IDENTITY))


@pytest.mark.proves("I5")
@given(flushes=seal_logs(), actions=steps, seed=st.integers(0, 2**16), data=st.data())
@settings(max_examples=examples(80))
def test_a_state_that_was_saved_at_any_point_goes_on_to_the_same(
    flushes: Any, actions: list[str], seed: int, data: st.DataObject
) -> None:
    sampler = Decider(max_policy_lag=2, capacity_groups=12, max_open_batches=4)
    with contextlib.suppress(TooManyOpenBatches):
        drive(sampler, flushes, actions)
    by_log: dict[Any, list[Any]] = {log: [] for log in LOGS}
    for log, offset, flush in sampler.sealed:
        by_log[log].append(lambda s, a=(log, offset, flush): s.apply_groups(*a))
    by_log["decisions"] = [
        lambda s, o=o, e=e: s.apply(o, 0, e) for o, e in enumerate(sampler.events)
    ]
    shuffle, order = random.Random(seed), []
    while any(by_log.values()):
        order.append(shuffle.choice([steps for steps in by_log.values() if steps]).pop(0))
    cut = data.draw(st.integers(0, len(order)))
    state = sampler.fresh()
    for apply in order[:cut]:
        apply(state)
    before, then = copied(state), state.digest()
    for apply in order[cut:]:
        apply(state)
    assert before.digest() == then, "what came later changed the copy"
    found = from_bytes(saved(before), IDENTITY, sampler.fresh())
    assert (found.place, found.fold.digest()) == (PLACE, then)
    for apply in order[cut:]:
        apply(found.fold)
    assert found.fold.digest() == state.digest() == sampler.state.digest()
    assert found.fold.cursor() == state.cursor()


@given(at=st.integers(0, 10**9), bit=st.integers(0, 7), cut=st.booleans())
def test_damaged_bytes_are_no_state(at: int, bit: int, cut: bool) -> None:
    data = bytearray(DATA)
    at %= len(data)
    if cut:
        del data[at:]
    else:
        data[at] ^= 1 << bit
    with pytest.raises(UnusableState, match="damaged"):
        from_bytes(bytes(data), IDENTITY, decided().fresh())


DATA = saved(decided().state)


@pytest.mark.parametrize("name", ["sampler", "log", "root_id"])
def test_the_state_of_another_sampler_log_or_root_is_refused(name: str) -> None:
    with pytest.raises(UnusableState, match="other"):
        from_bytes(DATA, {**IDENTITY, name: "other"}, decided().fresh())


def test_the_state_of_other_settings_or_logs_is_refused() -> None:
    settings_differ = Decider(max_open_batches=4, seed=1).fresh()
    unbounded = Decider(max_open_batches=4, max_policy_lag=-1).fresh()
    filtering = Decider(max_open_batches=4, exclude_flags=("toxic",)).fresh()
    same = decided().fresh()
    logs_differ = SamplerState(same.name, same.choosing, LOGS[:2])
    for like in (settings_differ, unbounded, filtering, logs_differ):
        with pytest.raises(UnusableState, match="other settings or seal logs"):
            from_bytes(DATA, IDENTITY, like)


def test_a_state_whose_early_scores_wait_for_another_time_is_refused() -> None:
    found, wanted = (early_scores_waiting(expire_after_s) for expire_after_s in (1800.0, 7200.0))
    assert from_bytes(saved(found), IDENTITY, early_scores_waiting(900.0)), "an hour at least"
    with pytest.raises(UnusableState, match="other settings or seal logs"):
        from_bytes(saved(found), IDENTITY, wanted)


def early_scores_waiting(expire_after_s: float) -> SamplerState:
    sampler = SamplerConfig(environments=("math",))
    environments = {"math": EnvironmentConfig(expire_after_s=expire_after_s)}
    return SamplerState("trainer-a", choosing_of(sampler, environments), LOGS[1:])


def test_settings_that_no_fold_looks_at_may_be_others_and_are_those_of_now() -> None:
    like = Decider(max_open_batches=5, alpha=3.0, recency="exp", max_policy_lag=3).fresh()
    found = from_bytes(DATA, IDENTITY, like).fold
    assert (found.choosing, found.digest()) == (like.choosing, decided().state.digest())


def test_saving_and_reading_a_large_state_copies_its_bytes_few_times() -> None:
    sampler = Decider(capacity_groups=10**6)
    for flush in range(60):
        sampler.seal(*[GroupSpec(example_id=f"{flush}-{n}") for n in range(100)])
    state = copied(sampler.state)
    saved(copied(sampler.state))
    tracemalloc.start()
    try:
        pieces = list(to_pieces(SavedFold(state, PLACE), IDENTITY))
        written = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert written < 2.5 * sum(map(len, pieces))


def test_the_state_of_another_version_of_the_fold_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(saved_state, "FOLD_VERSION", saved_state.FOLD_VERSION + 1)
    with pytest.raises(UnusableState, match="another version"):
        from_bytes(DATA, IDENTITY, decided().fresh())


def test_the_state_of_a_class_that_is_gone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("rollstream.folds.pace.Pace")
    with pytest.raises(UnusableState, match="cannot be made again"):
        from_bytes(DATA, IDENTITY, decided().fresh())


@pytest.mark.proves("I5")
@pytest.mark.parametrize("path", golden_runs(), ids=lambda path: path.name)
def test_a_state_that_was_saved_before_is_gone_on_from_to_what_all_logs_come_to(path: Path) -> None:
    """As after an upgrade that did not change the fold, whatever else of Rollstream it changed."""
    events = GoldenEvents.from_bytes(path.read_bytes())
    saved = state_beside(path).read_bytes()
    assert events.gone_on_from(saved).digest() == events.whole().digest()


def test_the_version_of_the_fold_stands_for_its_sources() -> None:
    assert fold_version.PINNED.read_text() == fold_version.pin(), (
        "the sources of the sampler's fold changed. If it comes to something else, or a state "
        "holds something else, count FOLD_VERSION up (saved_state.py). In any case run "
        "`make fold-version`"
    )


def test_the_version_of_the_fold_is_of_all_that_it_imports() -> None:
    files = {
        ".".join(("rollstream", package, *path.relative_to(package_folder(package)).parts))
        .removesuffix(".py")
        .removesuffix(".__init__"): path
        for package, path in all_sources()
    }
    folding = [name for name in files if name.startswith("rollstream.folds")]
    found, wanted = set[str](), [*folding]
    while wanted:
        name = wanted.pop()
        if name in files and name not in found and not name.startswith(NO_FOLD):
            found.add(name)
            wanted += [one.module for one in imports(files[name])]
    assert {"rollstream.streams.folds.entries", "rollstream.streams.owned.fence"} <= found
    assert found <= {name for name, path in files.items() if path in fold_sources()}


def test_nothing_but_what_a_state_consists_of_is_made_of_the_bytes() -> None:
    _, line, _ = DATA.split(b"\n", 2)
    assert json.loads(line)["identity"] == IDENTITY
    for made in (print, random.Random, pickle.loads):
        body = pickle.dumps(made)
        checksum = xxhash.xxh3_128_hexdigest(line + body).encode()
        with pytest.raises(UnusableState, match=r"which no state does"):
            from_bytes(b"\n".join((checksum, line, body)), IDENTITY, decided().fresh())
