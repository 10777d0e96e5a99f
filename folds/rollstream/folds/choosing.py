"""From the configuration of a sampler to what its decisions depend on. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from rollstream.runtime.config.sections import EnvironmentConfig, SamplerConfig
from rollstream.schemas.choosing import Choosing, ServedEnvironment

_CONFIGURED = [field.name for field in fields(Choosing) if field.name != "environments"]


EARLY_SCORES_MIN_S = 3_600.0


def early_scores_s(environment: EnvironmentConfig) -> float:
    """How long a score of a rollout waits for the rollout's group: twice as long as the rollout
    does, since a sealer may lag, and an hour at least."""
    return max(EARLY_SCORES_MIN_S, 2 * environment.expire_after_s)


def choosing_of(sampler: SamplerConfig, environments: Mapping[str, EnvironmentConfig]) -> Choosing:
    """The settings of ``sampler`` that choose, with what they need of its environments."""
    served = [
        ServedEnvironment(
            name=name,
            min_group_size=environments[name].min_group_size,
            early_scores_s=early_scores_s(environments[name]),
        )
        for name in sampler.environments
    ]
    settings = {name: getattr(sampler, name) for name in _CONFIGURED}
    if sampler.ready_packs is not None:  # What the window drops is not chosen.
        limits = sampler.max_policy_lag, sampler.ready_packs.version_window
        settings["max_policy_lag"] = min(limit for limit in limits if limit >= 0)
    return Choosing(environments=tuple(served), **settings)
