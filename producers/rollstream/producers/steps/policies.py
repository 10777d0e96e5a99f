"""Which policy sampled a step: what the step says of it, compared with what trainers announced.
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, NamedTuple

from rollstream.producers.admission.policies import (
    Announced,
    branches_of,
    going_on,
    lineages_of,
)
from rollstream.producers.rollouts.fields import checked
from rollstream.producers.steps.segments import Step
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.order import UNKNOWN_STEP, PolicyRef, off_branch

_ASK = "producer.policy() has all of it, and so has GET …/policy of the gateway"


class KnownPolicies(NamedTuple):
    """What is known of an environment's trainers, as ``AdmissionLog`` has it.

    Attributes:
        announced: the newest policy of each sampler.
        versions: every policy that was announced lately, by lineage and version.
    """

    announced: Announced
    versions: Mapping[tuple[str, str], PolicyRef]

    def resolved(self, step: Step) -> Step:
        """The step with the whole policy that sampled it. A policy ahead of those that are known is
        taken: its announcement may come later than what it sampled.

        Raises:
            InvalidRollout: two policies fit, or none; or it is of another lineage, or of weights
                that the trainer went back behind.
        """
        if step.lineage is not None:
            checked("lineage", step.lineage)
        if step.policy_epoch is not None:
            checked("policy_epoch", step.policy_epoch)
        version, weight_step = _said(step)
        found = self._announced_policy(version, weight_step, step)
        if found is None:
            if weight_step is None:
                finding = f"is {version!r:.80}, which no trainer announced here lately"
                remedy = f"give weight_step and policy_epoch too: {_ASK}"
                raise InvalidRollout("policy_version", version, remedy, finding)
            lineage, epoch = self._lineage(step.lineage), step.policy_epoch
            epoch = self._epoch(lineage, weight_step) if epoch is None else epoch
            name = f"step-{weight_step}" if version is None else version
            found = name, PolicyRef(lineage, epoch, weight_step)
        name, ref = found
        given = step.weight_step
        known = going_on(self.announced, ref.lineage)
        if known and all(off_branch(ref, branches_of(one)) for one in known):
            finding = (
                f"is {name!r:.80} (weights {ref.step} of epoch {ref.epoch}), which its trainer "
            )
            finding += "went back behind"
            remedy = f"sample with its newest policy: {_ASK}"
            raise InvalidRollout("policy_version", name, remedy, finding)
        return step._replace(
            policy_version=name,
            lineage=ref.lineage,
            policy_epoch=ref.epoch,
            # Weights of each token stay as they were given.
            weight_step=ref.step if given is None or _is_one(given) else given,
        )

    def _announced_policy(
        self, version: str | None, weight_step: int | None, step: Step
    ) -> tuple[str, PolicyRef] | None:
        """The policy of this version, or, where none is given, of these weights; None: no trainer
        announced it."""
        lineages = lineages_of(self.announced) if step.lineage is None else [step.lineage]
        if version is not None:
            found = [(one, version) for one in lineages if (one, version) in self.versions]
            if len(found) > 1:
                raise _of_several(lineages)
            for key in found:
                _check_alike(version, self.versions[key], weight_step, step.policy_epoch)
                return version, self.versions[key]
            return None
        fits = [
            (name, ref)
            for (lineage, name), ref in self.versions.items()
            if lineage in lineages
            and ref.step == weight_step
            and step.policy_epoch in (None, ref.epoch)
        ]
        if len(fits) > 1:
            finding = (
                f"is {weight_step}, and policies {[name for name, _ in fits]} are of these weights"
            )
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
            f"give the policy_version that it announced, or policy_epoch too: {_ASK}",
            f"is {weight_step}, and weights of {newest + 1} epochs have that number, since the "
            "trainer resumed",
        )


def _said(step: Step) -> tuple[str | None, int | None]:
    """The version and the weights that the step names; a version that is a number is
    the weights'."""
    number = step.weight_step
    if number is not None:  # -1 for one a token; what else is wrong with it is found later.
        number = index(number) if _is_one(number) else UNKNOWN_STEP
    if isinstance(step.policy_version, str):
        return str.__str__(step.policy_version), number
    version: int = checked("weight_step", step.policy_version)
    if number not in (None, version):
        remedy = "a policy_version that is a number is the weight_step: give it once"
        finding = f"is {number}, and policy_version is {version}"
        raise InvalidRollout("weight_step", number, remedy, finding)
    return None, version


def _is_one(weight_step: Any) -> bool:
    """Whether it is one whole number."""
    try:
        index(weight_step)
    except TypeError:
        return False
    return True


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
