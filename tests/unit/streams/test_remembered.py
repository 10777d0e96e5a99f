"""What is remembered of settled segments, against a dictionary."""

from __future__ import annotations

import random

import pytest

from harness.sealed_state import packed
from rollstream.schemas.ids import SegmentId
from rollstream.streams.folds import remembered
from rollstream.streams.folds.remembered import Remembered


@pytest.mark.proves("A4")
@pytest.mark.parametrize("seed", range(20))
def test_each_segment_is_found_until_its_newest_flush_is_forgotten(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(remembered, "RECENT_MAX", dice.choice((1, 8, 64)))
    found, model = Remembered(), dict[SegmentId, int]()
    names: list[SegmentId] = [f"u{number}" for number in range(60)]
    names += [(f"u{number}", 1 + number % 3) for number in range(60)]
    first = 0
    for flush in range(80):
        batch = dice.sample(names, dice.randint(0, 12))
        found.add(batch, flush)
        model.update(dict.fromkeys(batch, flush))
        if dice.random() < 0.3:
            first = dice.randint(first, flush)
            found.forget(first)
        asked = dice.sample(names, 40)
        wanted = [index for index, one in enumerate(asked) if model.get(one, -1) >= first]
        assert sorted(found.among(asked)) == wanted


def test_states_are_equal_wherever_they_began() -> None:
    late, early = Remembered(), Remembered()
    early.add(["a", "b"], 0)
    for flush, batch in enumerate((["b", "c"], ["d"])):
        early.add(batch, flush + 1)
        late.add(batch, flush)
    assert packed(early) != packed(late)
    early.forget(1)
    assert packed(early) == packed(late)
