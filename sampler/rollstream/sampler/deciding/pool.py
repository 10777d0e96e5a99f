"""What a trajectory pool has to know of the sampler that it reads from. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rollstream.runtime.config.sections import SamplerConfig
from rollstream.sampler.deciding.command import Command, ResultContext
from rollstream.streams.folds.sampler.state import SamplerState

_NEEDED: tuple[tuple[str, Any, str], ...] = (
    ("order", "ready", "groups come in the order in which they became ready"),
    ("max_policy_lag", -1, "off-policy steps stay in the batch, marked"),
    ("max_rollout_step_delay", -1, "off-policy steps stay in the batch, marked"),
    ("max_rollout_timestamp_delay", -1.0, "old steps stay in the batch"),
    ("off_branch", "keep", "off-policy steps stay in the batch, marked"),
    ("max_samples", 1, "a group is fetched once"),
    ("samples_per_insert", None, "readers never wait for writers"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStanding:
    """Attributes:
    wrong: settings that no pool can be read with, what it needs instead, and why; empty: none.
    final_step: every fetch up to this one is final; -1: none is.
    """

    wrong: str
    final_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPool(Command[PoolStanding]):
    """How a pool begins to read."""

    claims: ClassVar[bool] = False

    def result(self, state: SamplerState, context: ResultContext) -> PoolStanding:
        config = context.config.samplers[state.name]
        return PoolStanding(wrong=_wrong(state.name, config), final_step=state.final_step)


def _wrong(name: str, config: SamplerConfig) -> str:
    found = []
    for setting, needed, reason in _NEEDED:
        value = getattr(config, setting)
        fits = value < 0 if needed in (-1, -1.0) else value == needed
        if not fits:
            found.append(f"{setting} is {value!r}, and a pool needs {needed!r}: {reason}")
    return f"[samplers.{name}] {'; '.join(found)}" if found else ""
