"""What the reader of a trajectory pool asks of its sampler. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from rollstream.folds.state import SamplerState
from rollstream.sampler.decide.batches.next_batch import NextBatch
from rollstream.sampler.decide.command import Command, Look, Now, ResultContext
from rollstream.sampler.decide.trainer.commands import Ack, MarkCheckpointed, Resume
from rollstream.sampler.errors import UnknownStep
from rollstream.schemas.choosing import POOL_SETTINGS, Choosing, differs_from_pool
from rollstream.schemas.events import Resumed, SamplerEvent
from rollstream.schemas.order import UNKNOWN_STEP


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPool(Look[str]):
    """The settings that no pool can be read with, and what it needs instead; empty: none."""

    def result(self, state: SamplerState, context: ResultContext) -> str:
        config = context.config.samplers[state.name]
        found = [
            f"{name} is {getattr(config, name)!r}, and a pool needs {POOL_SETTINGS[name]!r}"
            for name in differs_from_pool(partial(getattr, config))
        ]
        return f"[samplers.{state.name}] {'; '.join(found)}" if found else ""


class PoolReading(NamedTuple):
    """Where a reader goes on.

    Attributes:
        step: to fetch first: every one before it is final.
        trainer_epoch: of the reader, which is fenced once another one is in effect.
    """

    step: int
    trainer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePool(Command[PoolReading]):
    """A reader begins after the newest final fetch, and fences whoever read before. Which fetch
    that is, is decided with it: what the one before acknowledged until then stays so.

    Attributes:
        weight_step: of the weights that its trainer goes on with; -1: the first policy that it
            publishes says it.
    """

    weight_step: int = UNKNOWN_STEP

    def decide(self, state: SamplerState, now: Now) -> list[SamplerEvent]:
        """As a trainer's resume it is never fenced."""
        if self.weight_step > state.next_step:
            raise UnknownStep(
                f"weights {self.weight_step} cannot be there yet: {state.next_step} groups were "
                f"fetched from pool {state.name!r}, so its trainer has done at most as many "
                "optimizer steps; give the weight_step of weights that it published through this "
                "sampler, or none"
            )
        final = state.final_step
        resume = Resume(checkpointed_step=None if final < 0 else final)
        # A run that begins goes back behind nothing: what its trainer published before its first
        # fetch is of the same epoch.
        begins = state.trainer_epoch == 0 and state.next_step == 0
        return [
            replace(
                event,
                reads_pool=True,
                weight_step=self.weight_step,
                policy_epoch=state.policy_epoch if begins else event.policy_epoch,
            )
            for event in resume.decide(state, now)
            if isinstance(event, Resumed)
        ]

    def decision_key(self) -> Hashable:
        """No two begin one epoch."""
        return object()

    def result(self, state: SamplerState, context: ResultContext) -> PoolReading:
        return PoolReading(state.final_step + 1, state.trainer_epoch)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchGroup(NextBatch):
    """The next group of the pool.

    Attributes:
        max_queue_size: ready groups from which the oldest are dropped first, on record; None: only
            ``capacity_groups`` bounds them. No part of the request.
    """

    max_queue_size: int | None = None

    def _choosing(self, state: SamplerState) -> Choosing:
        if self.max_queue_size is None:
            return state.choosing
        most = min(self.max_queue_size, state.choosing.capacity_groups)
        return replace(state.choosing, capacity_groups=most)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgeFetch(MarkCheckpointed):
    """The fetch of this step was used, and is final: both, or neither."""

    batch_id: str

    def _decide(self, state: SamplerState, now: Now) -> list[SamplerEvent]:
        of_step = Ack(step=self.step, batch_id=self.batch_id), MarkCheckpointed(step=self.step)
        # Neither looks at what the other one changes, and no other trainer epoch is in effect.
        return [event for command in of_step for event in command.decide(state, now)]
