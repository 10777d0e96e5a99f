"""The order of policies: lag on integers, within a lineage, along one branch.

A policy is (lineage, epoch, step). A trainer's ``resume(n)`` loads the weights after batch n,
which are weights n + 1, and begins a new epoch; from then on a policy of an older epoch with a step
beyond n + 1 is off the branch: the same step now names other weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

UNKNOWN_STEP = -1


class PolicyRef(NamedTuple):
    """Names weights: those after ``step`` optimizer steps of ``epoch`` in ``lineage``."""

    lineage: str
    epoch: int
    step: int


class Policy(NamedTuple):
    """A published policy: workers sample with it and stamp what they publish with its numbers.

    Attributes:
        lineage: the sampler's; workers pass it on as ``publish(lineage=…)``.
        epoch: counts the resumes after which weights are other ones; ``publish(policy_epoch=…)``.
        step: optimizer steps behind the weights; ``publish(weight_step=…)``.
        version: the name of the weights, ``publish(policy_version=…)``; never used for other
            weights, and differs from what was asked for where that name was already taken in an
            earlier epoch.
        weights: where they are, as the trainer said.
        metadata: as the trainer gave it.
    """

    lineage: str
    epoch: int
    step: int
    version: str
    weights: str = ""
    metadata: Mapping[str, Any] = {}


class Branch(NamedTuple):
    """One resume: ``epoch`` began with the weights after ``from_step`` steps."""

    epoch: int
    from_step: int


def policy_lag(newest: PolicyRef, policy: PolicyRef) -> int | None:
    """Steps between ``policy`` and ``newest``; None where they cannot be compared.

    Negative: the policy is from the future of a rewound trainer.
    """
    if newest.lineage != policy.lineage or UNKNOWN_STEP in (newest.step, policy.step):
        return None
    return newest.step - policy.step


def off_branch(policy: PolicyRef, branches: Sequence[Branch]) -> bool:
    """Whether a later resume went back to before this policy, which is of the branches' lineage."""
    return any(b.epoch > policy.epoch and policy.step > b.from_step for b in branches)


def ahead(policy: PolicyRef, possible: PolicyRef, branches: Sequence[Branch]) -> bool:
    """Whether no trainer of this lineage that made these branches can have made the policy.

    Args:
        possible: the newest weights that it may have made, of its newest epoch.
    """
    if policy.lineage != possible.lineage:
        return False
    if policy.epoch > possible.epoch:
        # Another run's: it may have in common what this one went on from.
        return policy.step > min((branch.from_step for branch in branches), default=0)
    return policy.epoch == possible.epoch and policy.step > possible.step
