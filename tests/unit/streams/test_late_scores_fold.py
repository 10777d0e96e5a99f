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

from harness.groups import GroupSpec, flush_of
from rollstream.schemas.choosing import Choosing, ServedEnvironment
from rollstream.schemas.events import Flushed, RolloutScore, Scored, ServedScore
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.scoring import next_version
from rollstream.store.open import open_store
from rollstream.store.scores import LoggedScore, open_scores, write_scores
from rollstream.streams.errors import ScoresForgotten
from rollstream.streams.folds.sampler import late_scores
from rollstream.streams.folds.sampler.known import known_groups
from rollstream.streams.folds.sampler.saved_state import copied
from rollstream.streams.folds.sampler.scored import Given, served_scores, with_scores
from rollstream.streams.folds.sampler.state import SamplerState

LOGS = [PartitionAddress("math", 1, partition) for partition in range(2)]
SEALED_TS = 1_000_000
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


def sealed(number: int, partition: int, *rewards: tuple[float | None, ...]) -> Flushed:
    specs = [GroupSpec(rewards=of, example_id=f"ex-{number}") for of in rewards]
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
            flushed = sealed(10 * log.partition + offset, log.partition, *rewards)
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
@settings(max_examples=150, deadline=None)
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


def test_a_group_whose_score_was_forgotten_is_an_error_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(late_scores, "EARLY_MAX", 2)
    state = SamplerState("trainer-a", choosing(), LOGS)
    for offset in range(3):
        given = Given(scored(f"f{offset}-g0-0", 1.0), SEALED_TS)
        state.apply_scores(LOGS[0], offset, given)
    before = state.digest()
    for each in (state, copied(state)):
        with pytest.raises(ScoresForgotten, match="more than 2 records without a group"):
            each.apply_groups(LOGS[0], 0, sealed(0, 0, (None,)))
        assert each.digest() == before
    state.apply_groups(LOGS[0], 0, sealed(0, 0, (1.0,)))  # It takes none.
    state.apply_groups(LOGS[0], 1, sealed(1, 0, (None,)))
    state.apply_groups(LOGS[1], 0, sealed(2, 1, (None,)))
    assert len(state.ready) == 3
    assert not state.waiting


@given(histories(), st.integers(0, 99), st.sampled_from(["", "s"]), st.integers(0, 2))
@settings(max_examples=150, deadline=None)
def test_beyond_what_is_kept_the_state_is_the_same_or_there_is_an_error(
    steps: dict[object, list[Apply]], seed: int, scorer: str, kept: int
) -> None:
    groups_first = {log: steps[log] for log in sorted(steps, key=lambda log: log not in LOGS)}
    expected = SamplerState("trainer-a", choosing(scorer), LOGS)
    for apply in (one for of in groups_first.values() for one in of):
        apply(expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(late_scores, "EARLY_MAX", kept)
        try:
            found = folded(steps, seed, scorer)
        except ScoresForgotten:
            return
    assert (found.digest(), found.cursor()) == (expected.digest(), expected.cursor())


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
@settings(max_examples=60, deadline=None)
def test_the_files_count_versions_as_the_sampler_does(
    said: list[tuple[str, float, str, bool, int | None]],
) -> None:
    (group,) = known_groups(LOGS[0], 0, sealed(1, 0, (None, None, None)))
    events, versions = [], []
    for offset, (uid, reward, attempt, named, expected) in enumerate(said):
        by = group.group.group_id if named or not uid else ""
        event = scored(uid, reward, attempt=attempt, group=by, expect_version=expected)
        events.append(LoggedScore(offset, offset, event))
        after = with_scores(group, [Given(events[-1].event, offset)], choosing())
        changed = [one for one in after.scores if one not in group.scores]
        versions.append(max((one.version for one in changed), default=None))
        group = after
    with TemporaryDirectory() as root:
        write_scores(open_store(f"file://{root}"), LOGS[0], 0, len(events), events)
        assert open_scores(f"file://{root}", "math")["version"].to_pylist() == versions
