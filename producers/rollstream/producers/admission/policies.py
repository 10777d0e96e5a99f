"""Which policy workers sample with, and whether what it samples would still be served. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from rollstream.producers.errors import RunOver, SeveralLineages
from rollstream.schemas.events import PolicyAnnounced
from rollstream.schemas.order import UNKNOWN_STEP, Branch, Policy, PolicyRef, off_branch

Announced = Mapping[str, PolicyAnnounced]
"""As ``AdmissionLog.policies`` returns them."""


class PolicyLike(Protocol):
    """Names weights: what ``producer.policy()`` and a trainer's ``publish_policy`` return."""

    @property
    def version(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def lineage(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedPolicy:
    """A policy as ``producer.policy()`` returns it. Two are equal if all that the trainer published
    is equal.

    A copy in another process is a plain ``rollstream.schemas.order.Policy``, without ``stale``.

    Attributes:
        version: the name of the weights.
        step: optimizer steps behind the weights.
        epoch: counts the branches of the weights.
        lineage: the model in training.
        weights: where the weights are, as the trainer said.
        metadata: as the trainer gave it.
    """

    version: str
    step: int
    epoch: int
    lineage: str
    weights: str
    metadata: Mapping[str, Any]
    _announced: Callable[[], Announced] = field(repr=False, compare=False)

    def stale(self) -> bool:
        """Returns whether samples of this policy would be dropped now. It asks nobody.

        They would be if the policy is further behind the newest known one than the trainer's
        ``max_policy_lag``, or is off the trainer's branch.

        Raises:
            ProducerClosed: the producer that returned it was closed, and follows no policies.
        """
        return is_stale(PolicyRef(self.lineage, self.epoch, self.step), self._announced())

    def __reduce__(self) -> tuple[type[Policy], tuple[Any, ...]]:
        said = self.lineage, self.epoch, self.step, self.version, self.weights, self.metadata
        return Policy, said


class Wanted(NamedTuple):
    """What a call of ``producer.policy()`` asks for.

    Attributes:
        lineage: None: of the only one that there is.
        newer_than: None: any.
    """

    environment: str
    lineage: str | None
    newer_than: PolicyLike | None

    def __str__(self) -> str:
        than = self.newer_than
        newer = "" if than is None else f" newer than {than.version!r} (step {than.step})"
        lineage = f" of lineage {self.lineage!r}" if self.lineage is not None else ""
        return f"a policy{newer}{lineage} in environment {self.environment!r}"

    def among(
        self, announced: Callable[[], Announced], ended: Callable[[], Announced]
    ) -> FollowedPolicy | None:
        """The newest one that is known; None: there is none yet.

        Args:
            announced: as ``AdmissionLog.policies``.
            ended: as ``AdmissionLog.ended``: asked only where no trainer of the lineage lives.

        Raises:
            SeveralLineages: there are two models in training, and none is named.
            RunOver: there is none yet, and none will come unless a run is begun again: the runs of
                all its trainers are over.
        """
        known = announced()
        lineages = lineages_of(known)
        if self.lineage is None and len(lineages) > 1:
            raise SeveralLineages(
                self.environment, lineages, "RolloutProducer(lineage=…), or policy(lineage=…)"
            )
        newest = newest_of(known, self.lineage, self.newer_than)
        last = _last_published(known, self.lineage) or _last_published(ended(), self.lineage)
        if last is not None and last.over and (newest is None or self.newer_than is None):
            raise RunOver(
                f"{self} will not come: the run of sampler {last.sampler!r} is over, and its "
                f"newest policy is {last.policy_version!r} (step {last.step}); start its trainer "
                "again to extend the run"
            )
        if newest is None:
            return None
        return FollowedPolicy(
            version=newest.policy_version,
            step=newest.step,
            epoch=newest.policy_epoch,
            lineage=newest.lineage,
            weights=newest.weights,
            metadata=json.loads(newest.metadata),
            _announced=announced,
        )


def newest_of(
    announced: Announced, lineage: str | None, newer_than: PolicyLike | None = None
) -> PolicyAnnounced | None:
    """Of the trainer that published last, by log time, the newest policy; of ``lineage``, or of the
    only one that there is. None: there is none yet, or none that it has not left. Where a run goes
    on, those that are over do not count."""
    newest = _last_published(announced, lineage)
    if newest is None or off_branch(ref_of(newest), _branches(newest)):
        return None
    if newer_than is not None and not _replaces(newest, newer_than, announced):
        return None
    return newest


def _last_published(announced: Announced, lineage: str | None) -> PolicyAnnounced | None:
    """What the trainer tells that published last, of those whose run is not over, if there are."""
    lineages = lineages_of(announced)
    if lineage is None and len(lineages) == 1:
        (lineage,) = lineages
    return max(going_on(announced, lineage), key=_published, default=None)


def _published(policy: PolicyAnnounced) -> tuple[int, int, int]:
    return policy.published_ts, *_age(policy)


def _replaces(policy: PolicyAnnounced, other: PolicyLike, announced: Announced) -> bool:
    """Whether it is newer, or its trainer has left the other one and goes on from this one, or goes
    on where the other one's trainer, under another sampler, published last."""
    ref = PolicyRef(other.lineage, other.epoch, other.step)
    if _age(policy) > (ref.epoch, ref.step) or off_branch(ref, _branches(policy)):
        return True
    if (*_age(policy), policy.policy_version) == (other.epoch, other.step, other.version):
        return False
    others = [
        one
        for one in announced.values()
        if one.lineage == policy.lineage and one.sampler != policy.sampler
    ]
    return any(_age(one) >= (other.epoch, other.step) for one in others)


def is_stale(policy: PolicyRef, announced: Announced) -> bool:
    """Whether every sampler of its lineage that is known would drop what it samples, but for those
    of runs that are over where another goes on."""
    known = going_on(announced, policy.lineage)
    return bool(known) and all(_drops(one, policy) for one in known)


def _drops(newest: PolicyAnnounced, policy: PolicyRef) -> bool:
    branches = _branches(newest)
    if off_branch(policy, branches):
        return True
    # A trainer that has published nothing yet since it went back is at the step it went back to.
    ahead = [one.from_step for one in branches if one.epoch > newest.policy_epoch]
    step = ahead[-1] if ahead else newest.step
    known = policy.step != UNKNOWN_STEP
    return known and 0 <= newest.max_policy_lag < step - policy.step


def _age(policy: PolicyAnnounced) -> tuple[int, int]:
    return policy.policy_epoch, policy.step


def ref_of(policy: PolicyAnnounced) -> PolicyRef:
    """What names it."""
    return PolicyRef(policy.lineage, *_age(policy))


def going_on(announced: Announced, lineage: str | None) -> list[PolicyAnnounced]:
    """Of the lineage's trainers those whose run is not over; where all are, all."""
    of_lineage = [policy for policy in announced.values() if policy.lineage == lineage]
    return [policy for policy in of_lineage if not policy.over] or of_lineage


def lineages_of(announced: Announced) -> list[str]:
    """The models in training."""
    return sorted({policy.lineage for policy in announced.values()})


def _branches(policy: PolicyAnnounced) -> Sequence[Branch]:
    """Those whose rollouts the sampler drops."""
    return branches_of(policy) if policy.drops_off_branch else ()


def branches_of(policy: PolicyAnnounced) -> Sequence[Branch]:
    """One for each resume of its trainer that began an epoch."""
    epochs, steps = policy.branch_epochs.tolist(), policy.branch_steps.tolist()
    return list(map(Branch, epochs, steps))
