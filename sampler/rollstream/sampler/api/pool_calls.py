"""The methods by which a ``TrajectoryPool`` reads from its sampler."""

from __future__ import annotations

from abc import ABC, abstractmethod

from rollstream.sampler.batch.batch import Batch
from rollstream.sampler.decide.batches.next_batch import BatchCommand
from rollstream.sampler.decide.command import Command, R
from rollstream.sampler.decide.trainer.pool import (
    AcknowledgeFetch,
    AskPool,
    FetchGroup,
    PoolReading,
    ResumePool,
)
from rollstream.schemas.order import UNKNOWN_STEP


class ReadsPool(ABC):
    """A sampler as seen by the reader of its pool, besides ``next_batch``."""

    @abstractmethod
    def _ask(self, command: Command[R]) -> R: ...

    @abstractmethod
    def _ask_for_batch(self, command: BatchCommand, timeout_s: float | None) -> Batch: ...

    def unfit_for_pool(self) -> str:
        """Which settings no pool can be read with, and what it needs; empty: none. Looks only."""
        return self._ask(AskPool())

    def resume_pool(self, weight_step: int = UNKNOWN_STEP) -> PoolReading:
        """Begins to read after the newest final fetch, whichever it is by then; whoever read before
        is fenced.

        Args:
            weight_step: of the weights that its trainer goes on with; -1: not said.
        """
        return self._ask(ResumePool(weight_step=weight_step))

    def acknowledge_fetch(self, batch: Batch, *, trainer_epoch: int) -> None:
        """``ack`` and ``checkpointed`` in one decision. Raises ``Fenced`` where another epoch than
        the reader's is in effect, also one begun through this object."""
        return self._ask(
            AcknowledgeFetch(step=batch.step, batch_id=batch.batch_id, trainer_epoch=trainer_epoch)
        )

    def fetch_group(
        self,
        step: int,
        *,
        trainer_epoch: int,
        timeout_s: float,
        columns: tuple[str, ...],
        max_queue_size: int | None = None,
    ) -> Batch:
        """As ``next_batch`` of one group, by the reader of this epoch, which keeps so many ready
        groups at most. Raises as that, and ``Fenced`` as ``acknowledge_fetch``."""
        command = FetchGroup(
            step=step,
            num_groups=1,
            columns=columns,
            trainer_epoch=trainer_epoch,
            max_queue_size=max_queue_size,
        )
        return self._ask_for_batch(command, timeout_s)
