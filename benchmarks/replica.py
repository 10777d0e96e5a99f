"""An env replica's process: sends its share, never more than ``ahead_max`` ahead of the trainer."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.progress import Progress
from benchmarks.scenarios import Scenario
from benchmarks.systems.interface import System
from benchmarks.workload import Workload

WAIT_S = 0.004
PAUSE_S = (0.01, 0.06)  # Where rollouts go one at a time: until the trainer waits for the next.


def run_replica(
    system: System,
    address: str,
    replica: int,
    scenario: Scenario,
    progress_path: Path,
    pipe: Connection,
) -> None:
    """Sends its pid, waits for "go", publishes its share, and sends "arrived" once all has."""
    progress = Progress(progress_path)
    workload = Workload(scenario)
    first = replica * scenario.producers
    publishers = [
        system.publisher(address, first + number, workload) for number in range(scenario.producers)
    ]
    pipe.send(os.getpid())
    pipe.recv()
    turns, due = cycle(publishers), _due(scenario, replica)
    block, ahead_max = scenario.block, scenario.ahead_max
    for numbers in workload.share(replica):
        publisher = next(turns)
        # Counted in blocks, so that a replica that is late may always send: groups become complete.
        begins = numbers[0] - numbers[0] % block
        while begins - progress.consumed >= ahead_max and begins < progress.limit:
            publisher.idle()
            time.sleep(WAIT_S)
        if begins >= progress.limit:
            break
        if scenario.per_s is not None:
            time.sleep(max(0.0, next(due) - time.monotonic()))
        if scenario.one_at_a_time:
            time.sleep(random.uniform(*PAUSE_S))
            progress.sent_ns = time.monotonic_ns()
        for number in numbers:
            publisher.publish(workload.rollout(number))
    for publisher in publishers:
        publisher.close()
    pipe.send("arrived")


def _due(scenario: Scenario, replica: int) -> Iterator[float]:
    """When this process sends, by ``time.monotonic``: evenly, and between the other processes."""
    if scenario.per_s is None:
        return
    at_once = scenario.group_size if scenario.in_groups else 1
    between_s = at_once / scenario.per_s
    due = time.monotonic() + replica * between_s
    while True:
        yield due
        due += scenario.processes * between_s
