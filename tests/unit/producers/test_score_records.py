"""What a verifier may say of a rollout."""

from __future__ import annotations

import pytest

from rollstream.producers.score_records import as_score
from rollstream.schemas.errors import InvalidRollout


@pytest.mark.proves("A18")
def test_flags_may_be_a_mapping_to_booleans() -> None:
    assert as_score(1.0, {"cheats": True, "slow": False}).flags == ("cheats",)
    assert as_score(1.0, ["cheats"]).flags == ("cheats",)


@pytest.mark.parametrize("flags", [{"cheats": "no"}, {"cheats": 1}, "cheats", {1: True}])
def test_flags_of_another_sort_are_refused(flags: object) -> None:
    with pytest.raises(InvalidRollout, match="flag"):
        as_score(1.0, flags)  # type: ignore[arg-type]
