"""Ids, the order of policies, and the rules on fields."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.ids import GroupKey, group_id, prefix_hash
from rollstream.schemas.order import UNKNOWN_STEP, Branch, PolicyRef, ahead, off_branch, policy_lag
from rollstream.schemas.rules import check_version

KEY = GroupKey("math", "ex-1", 0, "step-1", "")
uids = st.lists(st.text(max_size=5), min_size=1, max_size=6, unique=True)


@pytest.mark.proves("A3")
@given(uids, st.randoms(use_true_random=False))
def test_group_id_depends_on_the_set_of_uids_only(members: list[str], order: object) -> None:
    shuffled = sorted(members, key=lambda _: order.random())  # type: ignore[attr-defined]
    assert group_id(KEY, members) == group_id(KEY, shuffled)


@pytest.mark.proves("A3")
@pytest.mark.parametrize("field", GroupKey._fields)
def test_group_id_depends_on_each_part_of_the_key(field: str) -> None:
    changed: dict[str, Any] = {field: 1 if field == "segment_idx" else "other"}
    other = KEY._replace(**changed)
    assert group_id(other, ["a"]) != group_id(KEY, ["a"])


@pytest.mark.proves("A3")
def test_group_id_keeps_uids_apart() -> None:
    assert group_id(KEY, ["ab", "c"]) != group_id(KEY, ["a", "bc"])


@pytest.mark.proves("A3")
def test_group_id_never_changes_between_releases() -> None:
    assert group_id(KEY, ["a", "b"]) == "e2b1f88ff97c7d2132928990d9dab3b5"


def test_prefix_hash_chains() -> None:
    first = prefix_hash("", b"aaaa", b"bbbb")
    assert len(first) == 32
    assert prefix_hash(first, b"aaaa", b"bbbb") != first
    assert prefix_hash("", b"aaaabbbb", b"") != first


def test_lag_counts_steps_within_a_lineage() -> None:
    newest = PolicyRef("a", 0, 10)
    assert policy_lag(newest, PolicyRef("a", 0, 7)) == 3
    assert policy_lag(newest, PolicyRef("a", 0, 12)) == -2
    assert policy_lag(newest, PolicyRef("b", 0, 7)) is None
    assert policy_lag(newest, PolicyRef("a", 0, UNKNOWN_STEP)) is None


@pytest.mark.parametrize(
    ("policy", "off"),
    [
        (PolicyRef("", 0, 5), False),  # Not beyond the step that epoch 1 went back to.
        (PolicyRef("", 0, 6), True),
        (PolicyRef("", 1, 6), False),  # Of the new epoch itself.
        (PolicyRef("", 1, 9), True),  # Beyond the step that epoch 2 went back to.
        (PolicyRef("", 2, 9), False),
    ],
)
def test_a_policy_is_off_the_branch_beyond_a_later_resume(policy: PolicyRef, off: bool) -> None:
    assert off_branch(policy, [Branch(1, 5), Branch(2, 8)]) is off


@pytest.mark.parametrize(
    ("policy", "is_ahead"),
    [
        (PolicyRef("", 2, 12), False),
        (PolicyRef("", 2, 13), True),
        (PolicyRef("", 1, 13), False),  # Off the branch, or common to both.
        (PolicyRef("", 3, 5), False),  # Another run's: epoch 1 went on from there, or after it.
        (PolicyRef("", 3, 6), True),
        (PolicyRef("other", 3, 99), False),
    ],
)
def test_a_policy_is_ahead_that_the_trainer_cannot_have_made(
    policy: PolicyRef, is_ahead: bool
) -> None:
    branches = [Branch(1, 5), Branch(2, 8)]
    assert ahead(policy, PolicyRef("", 2, 12), branches) is is_ahead
    assert ahead(PolicyRef("", 1, 1), PolicyRef("", 0, 12), [])
    assert not ahead(PolicyRef("", 1, 0), PolicyRef("", 0, 12), [])


@pytest.mark.parametrize("version", ["step-1", "é" * 33, "/" * 66, "x" * 200])
def test_a_version_that_names_a_folder(version: str) -> None:
    check_version("policy_version", version)


@pytest.mark.parametrize(
    "version", ["é" * 34, "/" * 67, "x" * 201, "", "__HIVE_DEFAULT_PARTITION__"]
)
def test_a_version_that_names_no_folder(version: str) -> None:
    with pytest.raises(InvalidRollout, match="must name a folder"):
        check_version("policy_version", version)


def test_a_version_is_not_called_as_groups_of_several_are() -> None:
    with pytest.raises(InvalidRollout, match=r"'mixed', the name of groups .* another name"):
        check_version("policy_version", "mixed")
    check_version("policy_version", "mixed-1")
