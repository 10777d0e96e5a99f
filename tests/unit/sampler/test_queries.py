"""What is asked of a sampler, as it is shown."""

from __future__ import annotations

from rollstream.sampler.deciding.queries import Progress


def test_progress_shows_numbers_by_environment_and_no_example() -> None:
    many = {f"example-{number}": 2 for number in range(5000)}
    progress = Progress(
        trained={"math": many},
        failed={},
        skipped={"math": {"y": 3}},
        filtered={"code": {"x": 1}},
        dropped={},
        handed_out={},
        ready={"math": 7},
        next_step=12,
        final_step=None,
    )
    assert repr(progress).splitlines() == [
        "Progress(next step 12, final step None)",
        "  code: filtered 1 (1 examples), ready 0",
        "  math: trained 10,000 (5,000 examples), skipped 3 (1 examples), ready 7",
    ]
