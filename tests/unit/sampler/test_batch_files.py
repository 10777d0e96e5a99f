"""Which batch files stand, and what is known of steps as runs."""

from __future__ import annotations

import pytest

from rollstream.sampler.history.batch_files import Steps, in_runs, standing_files


@pytest.mark.parametrize(
    ("files", "standing"),
    [
        ([], {}),
        ([(0, 0), (0, 1)], {0: 0, 1: 0}),
        ([(0, 0), (0, 2)], {0: 0, 2: 0}),
        # Released behind step 0, and decided again.
        ([(0, 0), (0, 1), (0, 2), (1, 1)], {0: 0, 1: 1}),
        # Replayed: the next epoch goes on where the older one ended.
        ([(0, 0), (0, 1), (1, 2)], {0: 0, 1: 0, 2: 1}),
        # Further back later: what came between is released too.
        ([(0, 0), (1, 1), (1, 2), (2, 3), (3, 1)], {0: 0, 1: 3}),
        ([(0, 0), (0, 1), (2, 0)], {0: 2}),
    ],
)
def test_a_file_stands_unless_a_later_epoch_decided_its_step_or_an_earlier_one(
    files: list[tuple[int, int]], standing: dict[int, int]
) -> None:
    assert standing_files(files) == standing
    assert standing_files(reversed(files)) == standing


def test_neighbours_of_which_the_same_is_known_are_one_run() -> None:
    known = [
        Steps(0, 4, "final", None),
        Steps(5, 5, "in_file", 0),
        Steps(6, 6, "in_file", 0),
        Steps(7, 7, "in_file", 1),
        Steps(8, 8, "in_no_file", None),
        Steps(10, 10, "in_no_file", None),
    ]
    assert in_runs(known) == [
        Steps(0, 4, "final", None),
        Steps(5, 6, "in_file", 0),
        Steps(7, 7, "in_file", 1),
        Steps(8, 8, "in_no_file", None),
        Steps(10, 10, "in_no_file", None),
    ]
    assert in_runs([]) == []
