"""``TrainingBatches``: what a batch maker made of each step's recorded batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import SupportsIndex

from rollstream.sampler.serving.api import SamplerApi
from rollstream.sampler.shaping.batch import Batch
from rollstream.sampler.shaping.examples import Examples
from rollstream.sampler.shaping.makers.interface import BatchMaker, MadeBatch
from rollstream.streams.folds.sampler.eligible import Accept


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TrainingBatch:
    """A step's examples; the same step gives the same bytes, also after a crash.

    Attributes:
        batch: as it was recorded, with the groups that were carried.
        made: which of its trajectories are trained on.
        examples: these, in the order of ``made.trajectories``; segments of one trajectory follow
            one another. With a maker that has nothing to train on it is empty.
        metadata: the maker's.
    """

    batch: Batch
    made: MadeBatch
    examples: Examples
    metadata: Mapping[str, float]


class TrainingBatches:
    """The examples of each step, made by a ``BatchMaker`` from what the sampler serves.

    What the maker keeps for later steps is recorded with the next step, so that every step can be
    made again: after a crash, from another process, by another rank. Ranks each make the whole
    step, which gives all the same, and train on their share of it.

    Args:
        sampler: that serves; its steps are asked for through this object alone.
        maker: chooses. What it keeps is carried from step to step.
        num_groups: new groups a step.
        batch_size: trajectories a step, at most.
        accept, mix, columns: as ``next_batch`` has them.
        merge_turns: as ``Examples.of`` has it.

    Examples:
        >>> batches = TrainingBatches(sampler, GrpoBatchMaker(seed=1),   # doctest: +SKIP
        ...                           num_groups=64, batch_size=256)
        >>> step = sampler.resume(None)                                  # doctest: +SKIP
        >>> training = batches.next(step)                                # doctest: +SKIP
        >>> batches.ack(training)                                        # doctest: +SKIP
    """

    def __init__(
        self,
        sampler: SamplerApi,
        maker: BatchMaker,
        *,
        num_groups: int,
        batch_size: int,
        accept: Accept | None = None,
        mix: Mapping[str, float] | None = None,
        columns: Sequence[str] = (),
        merge_turns: bool = False,
    ) -> None:
        raise NotImplementedError

    def next(self, step: SupportsIndex, *, timeout_s: float | None = None) -> TrainingBatch:
        """The examples of ``step``: the next one, or one that was served.

        Raises:
            RequestDiffers: the step was made with other settings.
            Others as ``next_batch``.
        """
        raise NotImplementedError

    def ack(self, training: TrainingBatch) -> None:
        """As ``SamplerApi.ack``; groups none of which is trained on count as ``filtered``, and
        their capacity goes back to env workers."""
        raise NotImplementedError

    def create_and_store_batch(
        self, batch_size: int, *, step: SupportsIndex, timeout_s: float | None = None
    ) -> str:
        """Makes the examples of ``step``, writes them under ``batches/``, and returns their id,
        with which ``stored_batch`` reads them. Repeating the call writes the same bytes."""
        raise NotImplementedError
