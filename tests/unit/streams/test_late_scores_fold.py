"""Late scores in a sampler's state: the same whatever the order in which logs are folded."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.examples import examples
from harness.groups import GroupSpec, flush_of
from rollstream.folds.choosing import choosing_of
from rollstream.folds.group import eligible
from rollstream.folds.group.known import known_groups
from rollstream.folds.group.scored import Given, served_scores, with_scores
from rollstream.folds.saved_state import copied, from_bytes, to_pieces
from rollstream.folds.scores import early_scores, recently_sealed
from rollstream.folds.scores.early_scores import GROUP_WAIT_US
from rollstream.folds.state import SamplerState
from rollstream.runtime.config.sections import EnvironmentConfig, SamplerConfig
from rollstream.schemas.choosing import Choosing, ServedEnvironment
from rollstream.schemas.events import Claimed, Flushed, RolloutScore, Scored, ServedScore
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.scoring import NewestVersions, next_version
from rollstream.store.open import open_store
from rollstream.store.score_files import LoggedScore, write_scores
from rollstream.store.scores import open_scores
from rollstream.streams.owned.fold import FoldPlace, SavedFold

LOGS = [PartitionAddress("math", 1, partition) for partition in range(2)]
SEALED_TS = 1_000_000
WAIT_US = 3_600_000_000  # By default.
pytestmark = pytest.mark.proves("A18", "I5")


def choosing(scorer: str = "") -> Choosing:
    return Choosing(environments=(ServedEnvironment(name="math"),), scorer=scorer)


def scored(
    uid: str,
    reward: float,
    *,
    scorer: str = "s",
    attempt: str = "",
    group: str = "",
    expect_version: int | None = None,
) -> Scored:
    return Scored(
        scorer=scorer,
        attempt=attempt,
        group_id=group,
        scored_ts=0,
        scores=(RolloutScore(uid, reward, {}, ()),),
        expect_version=expect_version,
    )


def sealed(
    number: int, partition: int, *rewards: tuple[float | None, ...], split: str = "train"
) -> Flushed:
    specs = [GroupSpec(rewards=of, example_id=f"ex-{number}", split=split) for of in rewards]
    return flush_of(specs, name=f"f{number}", partition=partition, now_ts=SEALED_TS)


Apply = Callable[[SamplerState], None]


@st.composite
def histories(draw: st.DrawFn) -> dict[object, list[Apply]]:
    """By log what it holds: groups with and without rewards, and scores of some of them."""
    steps: dict[object, list[Apply]] = {}
    targets: list[tuple[str, str]] = []
    for log in LOGS:
        steps[log] = []
        for offset in range(draw(st.integers(0, 3))):
            rewards = draw(
                st.lists(
                    st.sampled_from([(None, None), (0.0, None), (1.0, 1.0)]), min_size=1, max_size=2
                )
            )
            split = draw(st.sampled_from(["train", "train", "eval"]))
            flushed = sealed(10 * log.partition + offset, log.partition, *rewards, split=split)
            steps[log].append(
                partial(SamplerState.apply_groups, log=log, offset=offset, event=flushed)
            )
            targets += [(uid, "") for uid in flushed.segments.uids]
            targets += [("", group.group_id) for group in flushed.groups]
    targets.append(("nobody", ""))
    for log in LOGS:
        steps["scores", log] = []
        mine = targets[log.partition :: 2]  # A key is always of the same partition.
        for offset in range(draw(st.integers(0, 6)) if mine else 0):
            uid, group = draw(st.sampled_from(mine))
            event = scored(
                uid,
                draw(st.sampled_from([0.0, 1.0])),
                scorer=draw(st.sampled_from(["s", "t"])),
                attempt=draw(st.sampled_from(["", "a"])),
                group=group,
                expect_version=draw(st.sampled_from([None, None, 0, 1])),
            )
            what = Given(event, SEALED_TS + draw(st.integers(0, 3)))
            steps["scores", log].append(
                partial(SamplerState.apply_scores, log=log, offset=offset, given=what)
            )
    return steps


def folded(steps: dict[object, list[Apply]], seed: int, scorer: str) -> SamplerState:
    state = SamplerState("trainer-a", choosing(scorer), LOGS)
    left, shuffle = {log: list(of) for log, of in steps.items()}, random.Random(seed)
    while any(left.values()):
        shuffle.choice([of for of in left.values() if of]).pop(0)(state)
        if shuffle.random() < 0.1:
            state = copied(state)
    return state


@given(histories(), st.integers(0, 99), st.integers(0, 99), st.sampled_from(["", "s"]))
@settings(max_examples=examples(150), deadline=None)
def test_logs_in_any_interleaving_give_the_same_state(
    steps: dict[object, list[Apply]], one: int, other: int, scorer: str
) -> None:
    first, second = folded(steps, one, scorer), folded(steps, other, scorer)
    assert first.digest() == second.digest()
    assert first.cursor() == second.cursor()
    for ref in first.ready.refs():
        known = first.sealed(ref)
        assert known.has_rewards
        assert served_scores(known, first.choosing) == served_scores(
            second.sealed(ref), second.choosing
        )


def test_versions_count_what_differs() -> None:
    before: ServedScore | None = None
    versions = []
    for reward, attempt in ((1.0, ""), (1.0, "x"), (2.0, "x"), (3.0, "x"), (2.0, ""), (4.0, "y")):
        event = scored("u", reward, attempt=attempt)
        found = next_version(before, 0, event, event.scores[0], 0)
        before = found or before
        versions.append(found and found.version)
    assert versions == [1, None, 2, None, None, 3]


def test_a_flush_that_cannot_be_applied_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> float:
        raise OverflowError

    state = SamplerState("trainer-a", replace(choosing(), min_mean_reward=0.1), LOGS)
    flushed = sealed(0, 0, (None, 1.0), (1.0, 1.0))
    state.apply_scores(LOGS[0], 0, Given(scored(flushed.segments.uids[0], 0.5), SEALED_TS))
    before, early = state.digest(), state.late.early
    with monkeypatch.context() as patch:
        patch.setattr(eligible, "mean_of", broken)
        with pytest.raises(OverflowError):
            state.apply_groups(LOGS[0], 0, flushed, SEALED_TS)
    assert (state.digest(), state.late.early) == (before, early) == (before, 1)
    state.apply_groups(LOGS[0], 0, flushed, SEALED_TS)
    assert len(state.ready) == 2
    assert state.late.early == 0


def test_a_score_that_expects_another_version_changes_nothing() -> None:
    before: ServedScore | None = None
    versions = []
    for reward, expected in ((9.0, 1), (1.0, 0), (2.0, 0), (2.0, 1), (2.0, 7), (3.0, 1), (3.0, 2)):
        event = scored("u", reward, expect_version=expected)
        found = next_version(before, 0, event, event.scores[0], 0)
        before = found or before
        versions.append(found and found.version)
    assert versions == [None, 1, None, 2, None, None, 3]


def test_a_score_is_what_the_last_segment_of_a_trajectory_earned() -> None:
    flushed = sealed(1, 0, (0.5, None))
    two_turns = replace(flushed.segments, uids=("u", "u"), segment_idxs=np.array([0, 1], np.int32))
    (group,) = known_groups(LOGS[0], 0, replace(flushed, segments=two_turns))
    after = with_scores(group, [Given(scored("u", 2.0), SEALED_TS)], choosing())
    assert after.has_rewards
    assert after.rows.unpack().earned.tolist() == [0.5, 2.0]


def test_without_a_scorer_named_the_score_that_was_logged_last_counts() -> None:
    (group,) = known_groups(LOGS[0], 0, sealed(1, 0, (None, 1.0)))
    uid, published = "f1-g0-0", "f1-g0-1"
    said = [(scored(uid, 1.0, scorer="z"), 5), (scored(uid, 2.0, scorer="a"), 9)]
    said += [(scored(published, 3.0), 9)]
    after = with_scores(group, [Given(*one) for one in said], choosing())
    assert [(one.row, one.reward) for one in served_scores(after, choosing())] == [(0, 2.0)]


def given_of(uid: str, logged_ts: int, *, group: str = "", reward: float = 1.0) -> Given:
    return Given(scored(uid, reward, group=group), logged_ts)


def test_scores_wait_for_their_group_an_hour_of_log_time_and_no_longer() -> None:
    last = SEALED_TS + WAIT_US
    for seal_first in (False, True):
        for late_us, ready in ((0, 1), (1, 0)):
            state = SamplerState("trainer-a", choosing(), LOGS)
            score = partial(state.apply_scores, LOGS[0], 0, given_of("f1-g0-0", SEALED_TS))
            seal = partial(state.apply_groups, LOGS[1], 0, sealed(1, 1, (None,)), last + late_us)
            for step in (seal, score) if seal_first else (score, seal):
                step()
            assert (len(state.ready), len(state.waiting)) == (ready, 1 - ready)


@pytest.mark.parametrize(
    ("expire_after_s", "waits_s"), [(600.0, 3_600.0), (1_800.0, 3_600.0), (7_200.0, 14_400.0)]
)
def test_scores_wait_twice_as_long_as_rollouts_may_wait_for_their_group(
    expire_after_s: float, waits_s: float
) -> None:
    environment = EnvironmentConfig(seal_timeout_s=300.0, expire_after_s=expire_after_s)
    configured = choosing_of(SamplerConfig(environments=("math",)), {"math": environment})
    assert Choosing.of_record(configured.recorded()) == configured
    for late_us, ready in ((0, 1), (1, 0)):
        state = SamplerState("trainer-a", configured, LOGS)
        state.apply_scores(LOGS[0], 0, given_of("f1-g0-0", SEALED_TS))
        before_us = SEALED_TS + round(waits_s * 1e6)
        state.late.seal_logs_read("math", before_us)
        state.apply_groups(LOGS[1], 0, sealed(1, 1, (None,)), before_us + late_us)
        assert (len(state.ready), len(state.waiting)) == (ready, 1 - ready)


def test_what_waited_in_vain_is_forgotten_once_the_seal_logs_were_read_up_to_then() -> None:
    state = SamplerState("trainer-a", choosing(), LOGS)
    state.apply_scores(LOGS[0], 0, given_of("u", SEALED_TS))
    state.apply_scores(LOGS[0], 1, given_of("", SEALED_TS, group="g"))
    assert (state.late.early, state.late.unused) == (2, {})
    state.late.seal_logs_read("math", SEALED_TS + GROUP_WAIT_US + 1)
    assert (state.late.early, state.late.unused) == (1, {"no_group": 1})
    state.late.seal_logs_read("math", SEALED_TS + WAIT_US + 1)
    assert (state.late.early, state.late.unused) == (0, {"no_group": 2})
    state.apply_scores(LOGS[1], 0, given_of("v", SEALED_TS))
    assert (state.late.early, state.late.unused) == (0, {"no_group": 3})


@pytest.mark.parametrize("seal_first", [False, True])
def test_scores_of_groups_that_take_none_are_not_held(seal_first: bool) -> None:
    flushed = sealed(1, 0, (1.0, 0.0), (0.5,))
    state = SamplerState("trainer-a", choosing(), LOGS)
    if seal_first:
        state.apply_groups(LOGS[0], 0, flushed)
    for offset, uid in enumerate(flushed.segments.uids):
        state.apply_scores(LOGS[1], offset, given_of(uid, SEALED_TS))
    for offset, group in enumerate(flushed.groups):
        state.apply_scores(LOGS[0], offset, given_of("", SEALED_TS, group=group.group_id))
    if not seal_first:
        assert state.late.early == 5
        state.apply_groups(LOGS[0], 0, flushed)
    assert (state.late.early, state.late.unused) == (0, {"not_taken": 5})


def restarted(state: SamplerState) -> SamplerState:
    """What a start from a snapshot goes on with."""
    claimed = Claimed(owner="a", nonce="n", root_id="r")
    saved = SavedFold(copied(state), FoldPlace(1, b"record", (0, claimed), (0,)))
    like = SamplerState(state.name, state.choosing, LOGS)
    return from_bytes(b"".join(to_pieces(saved, {})), {}, like).fold


@pytest.mark.parametrize("carried", [copied, restarted])
def test_after_a_restart_it_is_known_what_was_sealed_lately(
    carried: Callable[[SamplerState], SamplerState],
) -> None:
    flushed = sealed(1, 0, *[(1.0,)] * 9)
    state = SamplerState("trainer-a", choosing(), LOGS)
    state.apply_groups(LOGS[0], 0, flushed)
    state = carried(carried(state))
    for offset, uid in enumerate(flushed.segments.uids):
        state.apply_scores(LOGS[1], offset, given_of(uid, SEALED_TS))
    assert (state.late.early, state.late.unused) == (0, {"not_taken": 9})


def test_after_a_restart_what_was_sealed_longest_ago_is_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recently_sealed, "SEALED_MAX", 5_000)
    flushes = [sealed(number, 0, *[(1.0,)] * 2_000) for number in (1, 2)]
    state = SamplerState("trainer-a", choosing(), LOGS)
    state.apply_groups(LOGS[0], 0, flushes[0])
    state = restarted(state)
    state.apply_groups(LOGS[0], 1, flushes[1])  # With the groups' ids these are 8,000.
    uids = [uid for flushed in flushes for uid in flushed.segments.uids]
    for offset, uid in enumerate((uids[0], uids[1_999], uids[-1])):
        state.apply_scores(LOGS[1], offset, given_of(uid, SEALED_TS))
        assert state.late.unused["not_taken"] == offset
    assert state.late.early == 1


@pytest.mark.parametrize("bound", ["EARLY_MAX", "EARLY_BYTES_MAX"])
def test_a_log_is_full_by_what_waits_of_it_alone(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_scores, bound, {"EARLY_MAX": 3, "EARLY_BYTES_MAX": 150}[bound])
    state = SamplerState("trainer-a", choosing(), LOGS)
    offset = 0
    while not state.late.is_full(LOGS[0]):
        state.apply_scores(LOGS[0], offset, given_of(f"f{offset}-g0-0", SEALED_TS))
        offset += 1
    assert offset == state.late.early == 3
    assert not state.late.is_full(LOGS[1])
    state.apply_groups(LOGS[0], 0, sealed(0, 0, (None,)))
    assert not state.late.is_full(LOGS[0])
    assert not copied(state).late.is_full(LOGS[0])
    assert (len(state.ready), state.late.early) == (1, 2)


@given(
    histories(),
    st.integers(0, 99),
    st.sampled_from(["", "s"]),
    st.lists(st.sampled_from([0, 2 * GROUP_WAIT_US, 2 * WAIT_US]), min_size=6, max_size=6),
)
@settings(max_examples=examples(150), deadline=None)
def test_what_is_forgotten_when_seal_logs_were_read_changes_no_state(
    steps: dict[object, list[Apply]], seed: int, scorer: str, delays: list[int]
) -> None:
    """Flushes are logged at any time; at each, whoever folds may know that nothing older comes."""
    times: dict[object, list[int]] = {}
    for log in LOGS:
        drawn = sorted(SEALED_TS + delays.pop() for _ in steps[log])
        times[log] = drawn
        steps[log] = [
            partial(SamplerState.apply_groups, **step.keywords, logged_ts=at)
            for step, at in zip(steps[log], drawn, strict=True)
            if isinstance(step, partial)
        ]
    expected = SamplerState("trainer-a", choosing(scorer), LOGS)
    for apply in (
        one for log in sorted(steps, key=lambda log: log not in LOGS) for one in steps[log]
    ):
        apply(expected)
    state, shuffle = SamplerState("trainer-a", choosing(scorer), LOGS), random.Random(seed)
    left = {log: list(of) for log, of in steps.items()}
    while any(left.values()):
        turn = shuffle.choice([log for log, of in left.items() if of])
        left[turn].pop(0)(state)
        to_come = [at for log in LOGS for at in times[log][len(times[log]) - len(left[log]) :]]
        state.late.seal_logs_read("math", min(to_come, default=SEALED_TS + 3 * WAIT_US))
        if shuffle.random() < 0.2:
            state = copied(state)
    assert (state.digest(), state.cursor()) == (expected.digest(), expected.cursor())
    assert state.late.early == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "f1-g0-0", "f1-g0-1"]),
            st.sampled_from([0.0, 1.0]),
            st.sampled_from(["", "a"]),
            st.booleans(),
            st.sampled_from([None, 0, 1, 2]),
        ),
        max_size=8,
    )
)
@settings(max_examples=examples(60), deadline=None)
def test_the_files_count_versions_as_the_sampler_does(
    said: list[tuple[str, float, str, bool, int | None]],
) -> None:
    (group,) = known_groups(LOGS[0], 0, sealed(1, 0, (None, None, None)))
    events, versions, newest = [], [], NewestVersions()
    for offset, (uid, reward, attempt, named, expected) in enumerate(said):
        by = group.group.group_id if named or not uid else ""
        event = scored(uid, reward, attempt=attempt, group=by, expect_version=expected)
        events.append(LoggedScore(offset, offset, event))
        after = with_scores(group, [Given(events[-1].event, offset)], choosing())
        changed = [one for one in after.scores if one not in group.scores]
        versions.append(max((one.version for one in changed), default=None))
        group = after
        newest.add(event, event.scores[0], offset)
    for scorer in ("", "s"):
        served = {one.row: one for one in served_scores(group, choosing(scorer))}
        for row in range(3):
            one = newest.in_effect(group.group.group_id, f"f1-g0-{row}", scorer, is_late=True)
            assert one == (served[row]._replace(row=0) if row in served else None)
    with TemporaryDirectory() as root:
        write_scores(open_store(f"file://{root}"), LOGS[0], 0, len(events), events)
        assert open_scores(f"file://{root}", "math")["version"].to_pylist() == versions
