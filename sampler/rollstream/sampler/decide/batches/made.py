"""What batch makers made, so that one that is not deterministic is found. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rollstream.folds.state import SamplerState
from rollstream.sampler.decide.command import Command, Now, ResultContext
from rollstream.sampler.errors import MakerDiffers
from rollstream.schemas.events import Made, SamplerEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMade(Command[None]):
    """A maker made this of the batch of ``step``; raises ``MakerDiffers`` if it made something else
    of it before."""

    step: int
    batch_id: str
    maker: str
    digest: bytes

    def _decide(self, state: SamplerState, now: Now) -> list[SamplerEvent]:
        batch = state.batches.get(self.step)
        if batch is None or batch.batch_id != self.batch_id:
            return []
        if batch.made:
            self.check(batch.made)
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

    def result(self, state: SamplerState, context: ResultContext) -> None:
        return None
