"""The sections of ready packs: ``[samplers.<name>.ready_packs]``, with ``schedule`` and
``channel_b``.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from rollstream.runtime.config.section import Section


class ScheduleConfig(Section):
    """Says which steps train on ready packs."""

    b_ratio: float = Field(ge=0, le=1)
    """Share of the steps on channel B, which trains on ready packs. Step s is on channel B if
    floor((s + 1) × b_ratio) > floor(s × b_ratio). The other steps are the trainer's own."""

    @model_validator(mode="before")
    @classmethod
    def _has_no_pattern(cls, given: Any) -> Any:
        if isinstance(given, dict) and "pattern" in given:
            raise ValueError(
                f"pattern {given['pattern']!r:.80} is not supported: the channel of a step follows "
                "from its number alone; write the share of steps on channel B instead, for example "
                "b_ratio = 0.5"
            )
        return given

    @property
    def exact_b_ratio(self) -> Fraction:
        """As it was written: 0.1 is a tenth."""
        return Fraction(repr(self.b_ratio))


class ChannelBConfig(Section):
    """Says how packs become ready."""

    mode: Literal["async", "step"] = "async"
    """`async`: packs are queued ahead of their steps. `step`: a step on channel B waits for its
    groups and trains on all of them, on one rank."""

    @model_validator(mode="before")
    @classmethod
    def _has_no_rollouts_of_its_own(cls, given: Any) -> Any:
        for name in ("rollouts", "sync"):
            if isinstance(given, dict) and name in given:
                raise ValueError(
                    f"{name} {given[name]!r:.80} is not supported: rollouts always come from env "
                    "workers, each with the weight_step of the weights that they loaded; leave "
                    f"{name} out"
                )
        return given


class ReadyPacksConfig(Section):
    """Configures packs that are ready when an optimizer step of a data-parallel trainer begins."""

    schedule: ScheduleConfig
    """Which steps train on ready packs."""
    channel_b: ChannelBConfig = Field(default_factory=ChannelBConfig)
    """How packs become ready."""
    pack_length: int = Field(ge=1, le=2**31 - 1)
    """Tokens of a pack. Trajectories with a longer segment are left out and counted."""
    num_groups: int | None = Field(default=None, ge=1)
    """New groups that a step asks for at most. None: as many as the queues need, or 64 with `mode =
    "step"`, in which a step waits for all of them."""
    gradient_accumulation_steps: int = Field(default=1, ge=1)
    """Packs that each rank trains on in a step on channel B."""
    queue_limit: int = Field(default=16, ge=1)
    """Most ready packs of each rank. Above it the oldest are dropped."""
    prefetch_target_packs: int = Field(default=8, ge=1)
    """Ready packs of each rank that a step leaves for the next one. It asks for groups accordingly.
    """
    version_window: int = Field(default=2, ge=0)
    """A pack of weights v is dropped once v < step − version_window."""
    leftovers: Literal["flush", "drop"] = "flush"
    """What becomes of trajectories that fill no pack of their version once a newer version comes.
    `flush`: part-filled packs, if each rank gets one. `drop`: they are dropped."""

    @model_validator(mode="after")
    def _can_progress(self) -> Self:
        steps = self.gradient_accumulation_steps
        for name in ("queue_limit", "prefetch_target_packs"):
            if getattr(self, name) < steps:
                raise ValueError(
                    f"{name} {getattr(self, name)} is below gradient_accumulation_steps {steps}: "
                    f"no step would ever have enough packs; set it to {steps} or more"
                )
        if self.prefetch_target_packs > self.queue_limit:
            raise ValueError(
                f"prefetch_target_packs {self.prefetch_target_packs} is above queue_limit "
                f"{self.queue_limit}: what is asked for would be dropped; lower it, or raise "
                "queue_limit"
            )
        return self
