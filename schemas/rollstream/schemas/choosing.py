"""Every setting that a sampler's decisions depend on, as one value. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Recency = Literal["uniform", "linear", "exp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedEnvironment:
    """An environment that a sampler serves.

    Attributes:
        min_group_size: fewest rollouts with which a group is served.
    """

    name: str
    min_group_size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Choosing:
    """What is chosen is a function of this, of the state, of the request and of the seed; nothing
    else that is configured has a part in it. The fields are those of ``[samplers.<name>]``, which
    explains them.
    """

    environments: tuple[ServedEnvironment, ...]
    lineage: str = ""
    seed: int = 0
    recency: Recency = "uniform"
    alpha: float = 1.0
    on_policy_fraction: float = 0.0
    prefer_policy_versions: tuple[str, ...] = ()
    recent_n_versions: int | None = None
    max_policy_lag: int | None = None
    max_rollout_step_delay: int = -1
    max_rollout_timestamp_delay: float = -1.0
    max_samples: int = 1
    capacity_groups: int = 65_536
    capacity: int | None = None
    max_open_batches: int = 64

    def names(self) -> tuple[str, ...]:
        """The environments' names."""
        return tuple(environment.name for environment in self.environments)
