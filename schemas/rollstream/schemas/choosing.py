"""Every setting that a sampler's decisions depend on, as one value. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from types import MappingProxyType, UnionType
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

from rollstream.schemas.errors import RollstreamError

Recency = Literal["uniform", "linear", "exp"]
RewardWeighting = Literal["uniform", "spread"]
Order = Literal["age", "ready"]


POOL_SETTINGS: Mapping[str, Any] = MappingProxyType(
    {
        "order": "ready",
        "max_policy_lag": -1,
        "max_rollout_step_delay": -1,
        "max_rollout_timestamp_delay": -1.0,
        "off_branch": "keep",
        "max_samples": 1,
        "samples_per_insert": None,
    }
)
"""With which a ``TrajectoryPool`` reads; instead of -1 any number below 0 does, or none."""


def differs_from_pool(value_of: Callable[[str], Any]) -> list[str]:
    """The names of settings with which no ``TrajectoryPool`` reads."""

    def fits(value: Any, needed: Any) -> bool:
        if needed in (-1, -1.0):
            return value is None or value < 0
        return bool(value == needed)

    return [name for name, needed in POOL_SETTINGS.items() if not fits(value_of(name), needed)]


class UnknownSettings(RollstreamError):
    """A newer version recorded settings, or values of them, that this one does not have.

    Attributes:
        names: of the settings, with the value where that is unknown.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(f"settings of a newer version: {', '.join(names)}; upgrade to read them")
        self.names = names


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedEnvironment:
    """An environment that a sampler serves.

    Attributes:
        min_group_size: fewest rollouts with which a group is served.
        early_scores_s: how long, in log time, a score of a rollout waits for the rollout's group.
    """

    name: str
    min_group_size: int = 1
    early_scores_s: float = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choosing:
    """What is chosen is a function of this, of the state, of the request and of the seed; nothing
    else that is configured has a part in it. The fields are those of ``[samplers.<name>]``, which
    explains them. ``samples_per_insert`` and ``error_buffer`` delay it, and decide how many groups
    a shaped batch has.
    """

    environments: tuple[ServedEnvironment, ...]
    lineage: str = ""
    seed: int = 0
    order: Order = "age"
    recency: Recency = "uniform"
    alpha: float = 1.0
    on_policy_fraction: float = 0.0
    prefer_policy_versions: tuple[str, ...] = ()
    recent_n_versions: int | None = None
    max_policy_lag: int = -1
    max_rollout_step_delay: int = -1
    max_rollout_timestamp_delay: float = -1.0
    max_samples: int = 1
    samples_per_insert: float | None = None
    error_buffer: tuple[float, float] | None = None
    capacity_groups: int = 65_536
    capacity: int | None = None
    max_open_batches: int = 64
    off_branch: Literal["drop", "keep"] = "drop"
    scorer: str = ""
    score_version: int | None = None
    score_timeout_s: float = 1800.0
    min_mean_reward: float | None = None
    max_mean_reward: float | None = None
    reward_weighting: RewardWeighting = "uniform"
    exclude_flags: tuple[str, ...] = ()  # New settings come last: see __setstate__.
    require_flags: tuple[str, ...] = ()

    def __setstate__(self, values: Sequence[Any]) -> None:
        """Settings that were saved before the last of these were there have their defaults."""
        for at, field in enumerate(fields(self)):
            value = values[at] if at < len(values) else field.default
            object.__setattr__(self, field.name, value)

    def recorded(self) -> str:
        """As decisions record it: canonical JSON."""
        return _recorded(self)

    @classmethod
    def of_record(cls, recorded: str) -> Self:
        """What was recorded; a setting that its version did not have yet is as by default, which
        is not always what is configured by default.

        Raises:
            UnknownSettings: of a newer version, which chooses by what this one does not know.
        """
        found: dict[str, Any] = json.loads(recorded)
        environments: list[dict[str, Any]] = found.pop("environments")
        unknown = found.keys() - _names_of(cls)
        for environment in environments:
            unknown |= environment.keys() - _names_of(ServedEnvironment)
        if found.get("max_policy_lag", -1) is None:  # No limit, before that was a negative number.
            found["max_policy_lag"] = -1
        values = [(cls, found), *((ServedEnvironment, one) for one in environments)]
        unknown |= {
            f"{name} = {json.dumps(value)}"
            for kind, recorded_ones in values
            for name, value in recorded_ones.items()
            if name not in unknown and not _is_value(value, _types_of(kind)[name])
        }
        if unknown:
            raise UnknownSettings(tuple(sorted(unknown)))
        lists = {name: tuple(value) for name, value in found.items() if isinstance(value, list)}
        served = tuple(ServedEnvironment(**one) for one in environments)
        return cls(environments=served, **{**found, **lists})

    @property
    def bounds_lag(self) -> bool:
        """Whether weights that are too old keep anything from being served."""
        limited = self.max_policy_lag >= 0 or self.max_rollout_step_delay >= 0
        return limited or self.recent_n_versions is not None

    @property
    def bounds_rows(self) -> bool:
        """Whether single rollouts of a group may be too old."""
        return self.max_rollout_step_delay >= 0 or self.max_rollout_timestamp_delay >= 0

    @property
    def least_of_aged(self) -> dict[str, int] | None:
        """Fewest rollouts of a group that is served, by environment; None: no rollout is left out
        for when it was made."""
        if self.max_rollout_timestamp_delay < 0:
            return None
        return {one.name: one.min_group_size for one in self.environments}

    def oldest_made_us(self, now_us: int) -> int | None:
        """When what is served at ``now_us`` was made at the earliest, microseconds; None: there is
        no limit."""
        if self.max_rollout_timestamp_delay < 0:
            return None
        return now_us - int(self.max_rollout_timestamp_delay * 1e6)

    @property
    def bounds_reward(self) -> bool:
        """Whether what its rollouts earned keeps a group from being served."""
        return self.min_mean_reward is not None or self.max_mean_reward is not None

    @property
    def bounds_flags(self) -> bool:
        """Whether the flags of its rollouts' scores keep a group from being served."""
        return bool(self.exclude_flags or self.require_flags)

    @property
    def filters(self) -> tuple[Any, ...]:
        """The settings by which a group is filtered as soon as its rewards are there."""
        flags = self.exclude_flags, self.require_flags
        return self.min_mean_reward, self.max_mean_reward, *flags

    @property
    def takes_turns(self) -> bool:
        """Whether an example that was served lately comes after others."""
        return self.order != "ready"

    def names(self) -> tuple[str, ...]:
        """The environments' names."""
        return tuple(environment.name for environment in self.environments)


@cache  # Each decision asks for it, and a process has few.
def _recorded(choosing: Choosing) -> str:
    return json.dumps(asdict(choosing), sort_keys=True, separators=(",", ":"))


@cache
def _types_of(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _is_value(value: Any, of: Any) -> bool:
    """Whether a JSON value is one of a field's type."""
    origin, inner = get_origin(of), get_args(of)
    if origin is Literal:
        return value in inner
    if origin is UnionType:
        return any(_is_value(value, one) for one in inner)
    if origin is tuple:
        return isinstance(value, list) and all(_is_value(one, inner[0]) for one in value)
    if of is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    return type(value) is of


def _names_of(kind: type[Any]) -> set[str]:
    return {field.name for field in fields(kind)}
