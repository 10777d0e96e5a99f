"""Processes that attach to a sampler, as trainers and who looks at them do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAM = """
import sys
from rollstream.sampler import *
name, config = sys.argv[1:]
try:
    sampler = SamplerClient.attach(name, config=config)
    print("=", sampler.stats().pid, flush=True)
except SamplerError as error:
    print("=", type(error).__name__, error, flush=True)
for line in sys.stdin:
    try:
        print("=", eval(line), flush=True)
    except Exception as error:
        print("=", type(error).__name__, error, flush=True)
"""


class Attached:
    """A process that is attached, or not; it evaluates what it is told.

    Attributes:
        process: of the operating system.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def answer(self) -> str:
        """The next that it has to say: first the process id of the actor, or the error."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("="):  # Ray prints lines of its own.
                return line.removeprefix("=").strip()
        raise AssertionError(f"the process ended with {self.process.wait()}")

    def ask(self, expression: str) -> str:
        """The value of an expression over ``sampler``, or the error."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{expression}\n")
        self.process.stdin.flush()
        return self.answer()


@contextmanager
def attaching(name: str, config: Path, **environment: str) -> Iterator[Attached]:
    """Starts a process that attaches to a sampler, with these variables; kills it at the end."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, name, str(config)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**inherited, **environment},
    ) as process:
        try:
            yield Attached(process)
        finally:
            process.kill()
