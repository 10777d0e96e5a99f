"""Logs that are lost at a random point, with some files: what files say agrees with the logs."""

from __future__ import annotations

from collections import Counter

import pytest

from rollstream.sampler.errors import UnknownSampler
from simulation.sampler.lost_logs import BY_SNAPSHOT, LostLogs

SEEDS = 60


@pytest.mark.proves("F1")
def test_what_files_say_is_what_the_logs_said_and_no_group_of_a_known_step_is_ready() -> None:
    found = Counter[str]()
    problems = {}
    for seed in range(SEEDS):
        world = LostLogs(seed)
        world.run()
        try:
            known = world.known()
        except UnknownSampler:
            found["no file"] += 1
            continue
        problems[seed] = world.problems(known)
        found += world.found
        found["snapshots"] += bool(known.snapshot)
        found["damaged"] += len(known.unreadable)
    assert {seed: of for seed, of in problems.items() if of} == {}
    reached = {*BY_SNAPSHOT, "in_file", "in_no_file", "ready", "snapshots", "damaged"}
    assert reached - {*found} == set()
