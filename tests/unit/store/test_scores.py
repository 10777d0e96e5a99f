"""The newest versions of late scores in files, beside those that are counted one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.examples import examples
from rollstream.schemas.events import RolloutScore, Scored
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.scoring import NewestVersions
from rollstream.store import MemoryBlobs
from rollstream.store.score_files import LoggedScore, write_scores
from rollstream.store.scores import filed_scores

ADDRESS = PartitionAddress("math", 1, 0)
pytestmark = pytest.mark.proves("A18")


@st.composite
def records(draw: st.DrawFn) -> list[LoggedScore]:
    found = []
    for offset in range(draw(st.integers(0, 8))):
        group = draw(st.sampled_from(["", "g", "h"]))
        uids = [f"u{number}" for number in range(8)] + 3 * ([""] if group else [])
        named = draw(st.lists(st.sampled_from(uids), min_size=1, max_size=3 if group else 1))
        event = Scored(
            scorer=draw(st.sampled_from(["s", "t"])),
            attempt=draw(st.sampled_from(["", "a"])),
            group_id=group,
            scored_ts=offset,
            scores=tuple(
                RolloutScore(uid, draw(st.sampled_from([0.0, 1.0])), {"style": 0.5}, ("slow",))
                for uid in named
            ),
            expect_version=draw(st.sampled_from([None, None, None, 0, 1])),
        )
        found.append(LoggedScore(offset, draw(st.integers(0, 3)), event))
    return found


@given(
    records(),
    st.integers(0, 8),
    st.sampled_from(["", "s", "nobody"]),
    st.sampled_from([None, 1, 2]),
)
@settings(max_examples=examples(300), deadline=None)
def test_scores_in_files_are_those_that_are_counted_one_by_one(
    said: list[LoggedScore], cut: int, scorer: str, wanted: int | None
) -> None:
    blobs, counted = MemoryBlobs(), NewestVersions(wanted)
    write_scores(blobs, ADDRESS, 0, cut, said[:cut])
    write_scores(blobs, ADDRESS, cut, 9, said[cut:])
    for record in said:
        for score in record.event.scores:
            counted.add(record.event, score, record.logged_ts)
    filed = filed_scores(blobs, "math", 1, wanted=wanted)
    assert filed is not None
    asked = [(group, f"u{number}") for group in "ghi" for number in range(9)]
    for are_late in (False, True):
        expected = [counted.in_effect(*one, scorer, is_late=are_late) for one in asked]
        found = [filed.in_effect(*one, scorer, is_late=are_late) for one in asked]
        assert found == expected
        groups, uids = zip(*asked, strict=True)
        rewards = filed.rewards(groups, uids, scorer, np.full(len(asked), are_late))
        wanted_rewards = [math.nan if one is None else one.reward for one in expected]
        np.testing.assert_array_equal(rewards, wanted_rewards)


def test_without_files_there_are_no_scores() -> None:
    assert filed_scores(MemoryBlobs(), "math", 1) is None
