"""What a rank records of each step, a line of JSON each; by it the run is shown and compared."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Trained:
    """A step that a rank took.

    Attributes:
        step: the trainer's.
        epoch: the trainer's; a resume begins another.
        digest: of the batch that was served for the step.
        weights: SHA-256 of the weights after it.
        reward: the batch's mean.
        lag: mean of the optimizer steps between the weights that sampled and the newest ones.
        fill: share of the packs' positions that hold a token.
    """

    step: int
    epoch: int
    digest: str
    weights: str
    reward: float
    lag: float
    fill: float


def record(path: Path, trained: Trained) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(trained)) + "\n")


def recorded(path: Path) -> list[Trained]:
    """In the order in which they were taken; a line that is being written is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [Trained(**json.loads(line)) for line in lines if line.endswith("\n")]
