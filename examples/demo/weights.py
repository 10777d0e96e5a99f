"""How new weights travel back to the env replicas: one file that is replaced as a whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from examples.demo.policy import Policy

_STEP_BYTES = 8


class Weights(NamedTuple):
    """The weights after ``step`` optimizer steps."""

    step: int
    policy: Policy


def version_of(step: int) -> str:
    """The policy version's name; never used again within a run."""
    return f"step-{step}"


class WeightsFile:
    """A reader sees the old weights or the new ones, never a mixture."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, step: int, policy: Policy) -> None:
        """Replaces what is there."""
        waiting = self._path.with_suffix(".new")
        waiting.write_bytes(step.to_bytes(_STEP_BYTES, "little") + policy.to_bytes())
        os.replace(waiting, self._path)

    def changed(self) -> int:
        """Differs after each ``write``; cheap to ask."""
        return self._path.stat().st_mtime_ns

    def read(self) -> Weights:
        """The newest weights."""
        data = self._path.read_bytes()
        step = int.from_bytes(data[:_STEP_BYTES], "little")
        return Weights(step, Policy.from_bytes(data[_STEP_BYTES:]))
