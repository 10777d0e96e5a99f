"""Which files a sampler names as witnesses that its store is there."""

from __future__ import annotations

import pytest

from harness.decider import Decider
from harness.groups import GroupSpec
from rollstream.folds.group import known_groups


@pytest.mark.parametrize("newest_max", [0, 4096])
def test_the_files_of_an_environment_are_named_and_no_group_is_made_for_it(
    newest_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_groups, "NEWEST_MAX", newest_max)
    sampler = Decider()
    for flush in range(3):
        sampler.seal(*[GroupSpec(example_id=f"{flush}-{n}") for n in range(2)])
    known = sampler.state._known
    wanted = {group.file.path for group in known.values() if group.key.environment == "math"}
    monkeypatch.setattr(known_groups.KnownGroups, "made", None)
    assert wanted
    assert sampler.state.paths("math") == sorted(wanted)
    assert sampler.state.paths("another") == []
