"""Which policy sampled a step: what the step says of it, compared with what trainers announced.
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, NamedTuple, Self

from rollstream.producers.admission.log import AdmissionLog
from rollstream.producers.admission.policies import (
    Announced,
    branches_of,
    going_on,
    lineages_of,
)
from rollstream.producers.rollouts.fields import checked
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.order import UNKNOWN_STEP, PolicyRef, off_branch

_SOURCE = "producer.policy() and GET …/policy return"


class KnownPolicies(NamedTuple):
    """What is known of an environment's trainers, as ``AdmissionLog`` has it.

    Attributes:
        announced: the newest policy of each sampler.
        versions: every policy that was announced lately, by lineage and version.
        are_read: whether all that was announced so far is among them. Else a version alone names a
            policy of no known weights.
    """

    announced: Announced
    versions: Mapping[tuple[str, str], PolicyRef]
    are_read: bool

    @classmethod
    def of(cls, log: AdmissionLog | None) -> Self:
        """What the log has read so far; None: it was not read."""
        return cls({}, {}, False) if log is None else cls(log.policies(), log.versions(), True)

    def sampled_by(
        self, version: Any, policy_epoch: Any, lineage: Any, weight_step: Any
    ) -> tuple[str, PolicyRef]:
        """The whole policy that sampled a step, of which it says these. A policy ahead of those
        that are known is taken: its announcement may come later than what it sampled.

        Args:
            version: its name, or a number: its weights'.
            policy_epoch: None: it does not say.
            lineage: the same.
            weight_step: one number, or one for each token: then the policy's is not known. None: it
                does not say. ``UNKNOWN_STEP``: they are not known.

        Raises:
            InvalidRollout: two policies fit, or none; or it is of another lineage, or of weights
                that the trainer went back behind.
        """
        if lineage is not None:
            checked("lineage", lineage)
        if policy_epoch is not None:
            checked("policy_epoch", policy_epoch)
        name, number = _said(version, weight_step)
        found = self._announced_policy(name, number, policy_epoch, lineage)
        if found is None:
            if number is None and not self.are_read:
                number = UNKNOWN_STEP
            elif number is None:
                finding = f"is {name!r:.80}, which no trainer announced here lately"
                remedy = f"give the weight_step and policy_epoch too that {_SOURCE} with a policy"
                raise InvalidRollout("policy_version", name, remedy, finding)
            lineage = self._lineage(lineage)
            epoch = self._epoch(lineage, number) if policy_epoch is None else policy_epoch
            name = f"step-{number}" if name is None else name
            found = name, PolicyRef(lineage, epoch, number)
        name, ref = found
        known = going_on(self.announced, ref.lineage)
        if known and all(off_branch(ref, branches_of(one)) for one in known):
            finding = f"is {name!r:.80} (weights {ref.step} of epoch {ref.epoch}), which its "
            remedy = f"sample with its newest policy, which {_SOURCE}"
            went_back = f"{finding}trainer went back behind"
            raise InvalidRollout("policy_version", name, remedy, went_back)
        return found

    def _announced_policy(
        self,
        version: str | None,
        weight_step: int | None,
        policy_epoch: int | None,
        lineage: str | None,
    ) -> tuple[str, PolicyRef] | None:
        """The policy of this version, or, where none is given, of these weights; None: no trainer
        announced it."""
        lineages = lineages_of(self.announced) if lineage is None else [lineage]
        if version is not None:
            named = [
                self.versions[one, version] for one in lineages if (one, version) in self.versions
            ]
            if len(named) > 1:
                raise _of_several(lineages)
            for ref in named:
                _check_alike(version, ref, weight_step, policy_epoch)
            return (version, named[0]) if named else None
        fits = [
            (name, ref)
            for (of, name), ref in self.versions.items()
            if of in lineages and ref.step == weight_step and policy_epoch in (None, ref.epoch)
        ]
        if len(fits) > 1:
            names = [name for name, _ in fits]
            finding = f"is {weight_step}, and policies {names} are of these weights"
            remedy = "give the version of the one that sampled, or policy_epoch"
            raise InvalidRollout("policy_version", weight_step, remedy, finding)
        return fits[0] if fits else None

    def _lineage(self, given: str | None) -> str:
        known = lineages_of(self.announced)
        if given is None:
            if len(known) > 1:
                raise _of_several(known)
            return known[0] if known else ""
        if known and given not in known:
            finding = f"is {given!r:.80}, and the models in training here are {known}"
            remedy = "give one of them, or leave it out where there is one"
            raise InvalidRollout("lineage", given, remedy, finding)
        return given

    def _epoch(self, lineage: str, weight_step: int) -> int:
        """The only epoch that can have these weights."""
        known = going_on(self.announced, lineage)
        branches = [branch for one in known for branch in branches_of(one)]
        newest = max((one.policy_epoch for one in known), default=0)
        newest = max([newest, *(branch.epoch for branch in branches)])
        if newest == 0 or weight_step == UNKNOWN_STEP:
            return newest
        if weight_step <= min((branch.from_step for branch in branches), default=-1):
            return 0  # Of every epoch.
        if all(weight_step > one.step for one in known if one.policy_epoch == newest):
            return newest
        raise InvalidRollout(
            "weight_step",
            weight_step,
            f"give the policy_version that it announced, or the epoch that {_SOURCE} with it",
            f"is {weight_step}, and weights of {newest + 1} epochs have that number, since the "
            "trainer resumed",
        )


def _said(version: Any, weight_step: Any) -> tuple[str | None, int | None]:
    """The version and the weights that a step names; a version that is a number is the weights'."""
    step = UNKNOWN_STEP if is_of_tokens(weight_step) else weight_step
    number = None if step is None else index(step)
    if isinstance(version, str):
        return str.__str__(version), number
    step = checked("weight_step", version)
    if number not in (None, step):
        remedy = "a policy_version that is a number is the weight_step: give it once"
        finding = f"is {number}, and policy_version is {step}"
        raise InvalidRollout("weight_step", number, remedy, finding)
    return None, step


def is_of_tokens(weight_step: Any) -> bool:
    """Whether it has a number for each token, and is not one whole number for all."""
    if weight_step is None:
        return False
    try:
        index(weight_step)
    except TypeError:
        return True
    return False


def _check_alike(
    version: str, ref: PolicyRef, weight_step: int | None, policy_epoch: int | None
) -> None:
    for name, given, known in (
        ("weight_step", weight_step, ref.step),
        ("policy_epoch", policy_epoch, ref.epoch),
    ):
        if given not in (None, known, UNKNOWN_STEP):
            remedy = "give what belongs to the policy that sampled, or its policy_version alone"
            finding = f"is {given}, and policy {version!r:.80} was announced with {known}"
            raise InvalidRollout(name, given, remedy, finding)


def _of_several(lineages: Sequence[str]) -> InvalidRollout:
    finding = f"is missing, and the models in training here are {[*lineages]}"
    return InvalidRollout("lineage", None, "give one of them", finding)
