"""An env replica's process: sends its share, never more than ``AHEAD_MAX`` ahead of the trainer."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.progress import Progress
from benchmarks.systems.interface import System
from benchmarks.workload import AHEAD_MAX, BLOCK, Workload

WAIT_S = 0.004


def run_replica(
    system: System, address: str, replica: int, length: str, progress_path: Path, pipe: Connection
) -> None:
    """Sends its pid, waits for "go", publishes its share, and sends "arrived" once all has."""
    progress = Progress(progress_path)
    workload = Workload(length)
    publisher = system.publisher(address, replica, workload)
    pipe.send(os.getpid())
    pipe.recv()
    for number in workload.share(replica):
        # Counted in blocks, so that a replica that is late may always send: groups become complete.
        begins = number - number % BLOCK
        while begins - progress.consumed >= AHEAD_MAX and begins < progress.limit:
            publisher.idle()
            time.sleep(WAIT_S)
        if begins >= progress.limit:
            break
        publisher.publish(workload.rollout(number))
    publisher.close()
    pipe.send("arrived")
