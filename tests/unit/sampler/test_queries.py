"""What is asked of a sampler, as it is shown."""

from __future__ import annotations

import copy
import pickle

from rollstream.sampler.decide.queries.progress import Progress


def test_progress_of_many_examples_is_pickled_in_pieces() -> None:
    many = {f"example-{number}": number % 3 for number in range(100_000)}
    progress = Progress(
        dispatched={"code": {"x": (1_000, 2_000)}},
        never_back={},
        unfinished={},
        failures={},
        trained={"math": many, "code": {}},
        failed={},
        skipped={},
        filtered={},
        unknown={},
        kept={},
        dropped={"math": {name: {"stale": 4} for name in many}},
        handed_out={},
        unacked={},
        ready={"math": 7},
        next_step=12,
        final_step=None,
    )
    pieces: list[pickle.PickleBuffer] = []
    header = pickle.dumps(progress, protocol=5, buffer_callback=pieces.append)
    assert max(len(header), *(piece.raw().nbytes for piece in pieces)) < 200_000
    assert pickle.loads(header, buffers=pieces) == progress
    assert copy.deepcopy(progress) == progress


def test_progress_shows_numbers_by_environment_and_no_example() -> None:
    many = {f"example-{number}": 2 for number in range(5000)}
    progress = Progress(
        dispatched={"code": {"x": (1_000, 2_000)}},
        never_back={"math": {"y": {"expired": 2, "failed": 1}}},
        unfinished={},
        failures={},
        trained={"math": many},
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
    assert repr(progress).splitlines() == [
        "Progress(next step 12, final step None)",
        "  code: dispatched 2 (1 examples), filtered 1 (1 examples), kept 2 (1 examples), ready 0",
        "  math: never back 3 (1 examples), trained 10,000 (5,000 examples), "
        "skipped 3 (1 examples), dropped 4 (1 examples), ready 7",
    ]
