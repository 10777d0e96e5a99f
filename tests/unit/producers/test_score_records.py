"""What a verifier may say of a rollout."""

from __future__ import annotations

import pytest

from rollstream.producers.scores.records import Score, as_score, score_record
from rollstream.schemas.errors import InvalidRollout


@pytest.mark.proves("A18")
def test_flags_may_be_a_mapping_to_booleans() -> None:
    assert as_score(1.0, {"cheats": True, "slow": False}).flags == ("cheats",)
    assert as_score(1.0, ["cheats"]).flags == ("cheats",)


@pytest.mark.parametrize("flags", [{"cheats": "no"}, {"cheats": 1}, "cheats", {1: True}])
def test_flags_of_another_sort_are_refused(flags: object) -> None:
    with pytest.raises(InvalidRollout, match="flag"):
        as_score(1.0, flags)  # type: ignore[arg-type]


@pytest.mark.parametrize("group_id", ["zz", "0" * 31, "A" * 32, "0" * 33, 7])
def test_what_cannot_be_the_id_of_a_group_is_refused(group_id: object) -> None:
    with pytest.raises(InvalidRollout, match="group_id"):
        score_record({"a": Score(1.0)}, group_id=group_id, scorer="s", attempt="", now_us=0)
    record = score_record({"a": Score(1.0)}, group_id="0f" * 16, scorer="s", attempt="", now_us=0)
    assert record.event.group_id == "0f" * 16
