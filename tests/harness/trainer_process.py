"""A trainer as a process of its own: ``python -m harness.trainer_process CONFIG SAMPLER``.

It does what each line of its input says, ``resume CHECKPOINT`` or ``publish STEP WEIGHTS``, and
prints a line when that is done.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from rollstream.sampler import Sampler

TESTS = Path(__file__).parents[1]


class TrainerProcess:
    """One that runs until its end is awaited, or it is killed."""

    def __init__(self, config: Path, sampler: str) -> None:
        command = [sys.executable, "-m", "harness.trainer_process", str(config), sampler]
        path = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=environment
        )

    def do(self, line: str) -> str:
        """What it says once that is done."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        """Kill -9."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


def main(config: str, name: str) -> None:
    with Sampler(name, config=config) as sampler:
        for line in sys.stdin:
            call, *given = line.split()
            if call == "resume":
                said: object = sampler.resume(int(given[0]), later="release")
            else:
                step, weights = given
                version = f"step-{step}"
                policy = sampler.publish_policy(int(step), policy_version=version, weights=weights)
                said = policy.version
            sys.stdout.write(f"{said}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
