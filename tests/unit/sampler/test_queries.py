"""What is asked of a sampler, as it is shown."""

from __future__ import annotations

import copy
import pickle

from rollstream.sampler.decide.queries.progress import Progress


def progress_of(trained: dict[str, int]) -> Progress:
    return Progress(
        dispatched={"code": {"x": (1_000, 2_000)}},
        never_back={"math": {"y": {"expired": 2, "failed": 1}}},
        unfinished={},
        failures={},
        trained={"math": trained},
        failed={},
        skipped={"math": {"y": 3}},
        filtered={"code": {"x": 1}},
        unknown={},
        kept={"code": {"x": 2}},
        dropped={"math": {"y": {"stale": 4}}},
        handed_out={},
        unacked={},
        ready={"math": 7},
        next_step=12,
        final_step=None,
    )


def test_progress_is_copied_whole() -> None:
    progress = progress_of({f"example-{number}": number % 3 for number in range(5_000)})
    assert copy.deepcopy(progress) == pickle.loads(pickle.dumps(progress)) == progress


def test_progress_shows_numbers_by_environment_and_no_example() -> None:
    many = {f"example-{number}": 2 for number in range(5000)}
    progress = progress_of(many)
    assert repr(progress).splitlines() == [
        "Progress(next step 12, final step None)",
        "  code: dispatched 2 (1 examples), filtered 1 (1 examples), kept 2 (1 examples), ready 0",
        "  math: never back 3 (1 examples), trained 10,000 (5,000 examples), "
        "skipped 3 (1 examples), dropped 4 (1 examples), ready 7",
    ]
