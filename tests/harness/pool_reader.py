"""A trainer's process that reads a trajectory pool, a line for each fetch; it may be killed.

As a program: ``python -m harness.pool_reader CONFIG SAMPLER``. Each line on its input is a fetch,
answered by a line of JSON: ``null`` where nothing was ready.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from rollstream.sampler import Sampler, TrajectoryPool

WAIT_S = 60.0


class PoolReader:
    """Such a process, with the sampler inside."""

    def __init__(self, config: Path, sampler: str) -> None:
        command = [sys.executable, "-m", "harness.pool_reader", str(config), sampler]
        pipe = subprocess.PIPE
        path = os.pathsep.join((str(Path(__file__).parents[1]), *sys.path))
        self._process = subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    def fetch(self, timeout_s: float = WAIT_S) -> Any:
        """What was fetched: prompt, step, digest and trajectories; None: none was ready."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{timeout_s}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the reader has ended"
        return json.loads(line)

    def kill(self) -> None:
        """``kill -9``."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()


def main(config: str, name: str) -> None:
    with Sampler(name, config=Path(config)) as sampler:
        pool = TrajectoryPool(sampler)
        for line in sys.stdin:
            found = pool.fetch_batch(timeout_s=float(line))
            said = None
            if found is not None:
                batch = found.batch
                said = [found.prompt_uid, batch.step, batch.digest.hex(), batch.trajectory_uids]
            sys.stdout.write(json.dumps(said) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
