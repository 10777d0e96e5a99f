"""``ReadyPacks``: packs that are ready when a data-parallel trainer's optimizer step begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import SupportsIndex

from rollstream.sampler.serving.api import SamplerApi
from rollstream.sampler.shaping.packs.filled import Packs


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ChannelA:
    """The step is the trainer's own, synchronous path. ``metrics``: see ``ReadyPacks``."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ChannelB:
    """The step trains on packs that were ready: ``gradient_accumulation_steps`` of them on every
    rank, a micro-batch each. ``packs``: this rank's. ``versions``: the weight step of each."""

    step: int
    packs: Packs
    versions: tuple[int, ...]
    metrics: Mapping[str, float]


class ReadyPacks:
    """A bounded first-in-first-out queue of packs for each rank, and one decision a step.

    Every rank makes the same decision from the same record: which channel a step has, and which
    packs. It stays for the whole accumulation window, and is the same after a resume. The queue
    itself is recorded with each step (the groups that are carried), so a restart rebuilds it.
    """

    def __init__(self, sampler: SamplerApi, *, dp_rank: int, dp_size: int) -> None:
        raise NotImplementedError

    def next_step(
        self, step: SupportsIndex, *, timeout_s: float | None = None
    ) -> ChannelA | ChannelB:
        """The decision for ``step``. Never waits for groups: what is ready is taken."""
        raise NotImplementedError
