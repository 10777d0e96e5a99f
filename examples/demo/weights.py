"""Where new weights lie for the env replicas: a file for each policy that is published."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from examples.demo.policy import Policy
from rollstream.producers import FollowedPolicy


class Weights(NamedTuple):
    """A policy as it was published, and what it samples with."""

    published: FollowedPolicy
    policy: Policy


def version_of(step: int) -> str:
    """The policy version's name; never used again within a run."""
    return f"step-{step}"


def save(folder: Path, step: int, policy: Policy) -> str:
    """Writes the weights after ``step`` optimizer steps; where they are."""
    path = folder / f"{version_of(step)}.bin"
    path.write_bytes(policy.to_bytes())
    return str(path)


def load(published: FollowedPolicy) -> Weights:
    """The weights that the trainer published."""
    return Weights(published, Policy.from_bytes(Path(published.weights).read_bytes()))
