"""From the configuration of a sampler to what its decisions depend on. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from rollstream.runtime.config.sections import EnvironmentConfig, SamplerConfig
from rollstream.schemas.choosing import Choosing, ServedEnvironment

_CONFIGURED = [field.name for field in fields(Choosing) if field.name != "environments"]


def choosing_of(sampler: SamplerConfig, environments: Mapping[str, EnvironmentConfig]) -> Choosing:
    """The settings of ``sampler`` that choose, with what they need of its environments."""
    served = [
        ServedEnvironment(name=name, min_group_size=environments[name].min_group_size)
        for name in sampler.environments
    ]
    settings = {name: getattr(sampler, name) for name in _CONFIGURED}
    return Choosing(environments=tuple(served), **settings)
