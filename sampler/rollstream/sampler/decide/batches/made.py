"""What batch makers made, so that one that is not deterministic is found. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rollstream.folds.batches.served import ServedBatch
from rollstream.folds.state import SamplerState
from rollstream.sampler.decide.command import Now
from rollstream.sampler.errors import MakerDiffers
from rollstream.schemas.events import Made, SamplerEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeOf:
    """A maker made this of the batch of ``step``. It goes with a trainer's next command, which
    raises ``MakerDiffers`` if something else was made of it before."""

    step: int
    batch_id: str
    maker: str
    digest: bytes

    def events(self, state: SamplerState, now: Now) -> list[SamplerEvent]:
        """The record of it, unless there is one, or the batch is no longer held."""
        batch = self._batch(state)
        if batch is None or batch.made:
            return []
        made = Made(
            **now,
            trainer_epoch=state.trainer_epoch,
            step=self.step,
            batch_id=self.batch_id,
            maker=self.maker,
            digest=self.digest,
        )
        return [made]

    def check_recorded(self, state: SamplerState) -> None:
        """``MakerDiffers`` where another digest is recorded."""
        batch = self._batch(state)
        if batch is not None and batch.made:
            self.check(batch.made)

    def check(self, before: bytes) -> None:
        """``MakerDiffers`` unless this digest is the same."""
        if before != self.digest:
            raise MakerDiffers(
                f"maker {self.maker!r} made another batch of step {self.step} than before (digest "
                f"{self.digest.hex()[:8]}, before {before.hex()[:8]}): it is not deterministic, or "
                "its code has changed. Draw from a seed and self.step alone, and keep nothing from "
                "step to step. After a change of its code give settings another version, and "
                f"resume({self.step - 1 if self.step else None}, later='release')"
            )

    def _batch(self, state: SamplerState) -> ServedBatch | None:
        batch = state.batches.get(self.step)
        return batch if batch is not None and batch.batch_id == self.batch_id else None
