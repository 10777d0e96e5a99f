"""Policies: weights under a version that is never used again. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rollstream.sampler.deciding.command import Command, Engine, Now
from rollstream.sampler.errors import InvalidRequest, RequestDiffers
from rollstream.schemas.events import PolicyPublished, SamplerEvent
from rollstream.schemas.order import Policy
from rollstream.streams.folds.sampler.state import SamplerState


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishPolicy(Command[Policy]):
    """Weights ``step`` can be sampled with, under this version."""

    step: int
    policy_version: str

    def _decide(self, state: SamplerState, now: Now) -> list[SamplerEvent]:
        if self.step < 0 or not self.policy_version:
            raise InvalidRequest(
                f"policy {self.policy_version!r} of step {self.step}: the version must not be "
                "empty and the step not negative"
            )
        version = self._unused_version(state)
        published = state.policies.get((state.policy_epoch, self.step))
        if published is not None:
            if published not in (version, self.policy_version):
                raise RequestDiffers(
                    f"weights {self.step} were published as {published!r} and now as "
                    f"{self.policy_version!r}; a policy has one version"
                )
            return []
        holder = state.versions.get(version)
        if holder is not None:
            raise RequestDiffers(
                f"version {version!r} already names weights {holder[1]} and is now given to "
                f"weights {self.step}; a version is never used again"
            )
        event = PolicyPublished(
            **now,
            trainer_epoch=state.trainer_epoch,
            step=self.step,
            policy_version=version,
            lineage=state.config.lineage,
            policy_epoch=state.policy_epoch,
        )
        return [event]

    def result(self, state: SamplerState, engine: Engine) -> Policy:
        version = state.policies[state.policy_epoch, self.step]
        return Policy(state.config.lineage, state.policy_epoch, self.step, version)

    def _unused_version(self, state: SamplerState) -> str:
        """A version that no older epoch used: a rewound trainer tends to count up to the same."""
        holder = state.versions.get(self.policy_version)
        if holder is None or holder[0] == state.policy_epoch:
            return self.policy_version
        return f"{self.policy_version}.e{state.policy_epoch}"
