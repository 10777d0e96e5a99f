"""The sample-to-insert ratio: which side is ahead, and by how much. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, floor
from typing import NamedTuple, Self

from rollstream.folds.state import SamplerState
from rollstream.schemas.choosing import Choosing


class SampleToInsertRatio(NamedTuple):
    """Keeps ``samples_per_insert`` × inserts − uses between two bounds, as Reverb's rate limiter of
    that name does: https://github.com/google-deepmind/reverb, ``reverb/rate_limiters.py``.

    An insert is a group that was ready in the trainer epoch in effect, a use its slot in a batch
    that was decided in it.

    Attributes:
        least: below it no batch may bring that error.
        most: above it no insert may.
    """

    samples_per_insert: float
    least: float
    most: float

    @classmethod
    def of(cls, choosing: Choosing) -> Self | None:
        """As configured; None: nothing is limited."""
        if choosing.samples_per_insert is None or choosing.error_buffer is None:
            return None
        return cls(choosing.samples_per_insert, *choosing.error_buffer)

    def error(self, inserts: int, uses: int) -> float:
        """Uses that the inserts allow, less those that were."""
        return self.samples_per_insert * inserts - uses

    def lacking(self, error: float, groups: int) -> int:
        """How many inserts a batch of ``groups`` waits for."""
        return max(0, ceil((self.least + groups - error) / self.samples_per_insert))

    def room(self, error: float) -> int:
        """How many more inserts there may be."""
        return max(0, floor((self.most - error) / self.samples_per_insert))


class Held(NamedTuple):
    """A batch that the ratio holds back.

    Attributes:
        lacking: how many more groups must become ready, 1 or more.
    """

    ratio: SampleToInsertRatio
    inserts: int
    uses: int
    groups: int
    lacking: int

    def why(self, name: str) -> str:
        """In words, with what to do about it."""
        spi, least, _ = self.ratio
        error = self.ratio.error(self.inserts, self.uses)
        return (
            f"samples_per_insert = {spi:g} holds the batch back: {self.inserts:,} groups were "
            f"ready in this trainer epoch and used {self.uses:,} times, so the batch would make "
            f"the error {spi:g} × {self.inserts} − {self.uses} − {self.groups} = "
            f"{error - self.groups:g}, and error_buffer allows {least:g}; it waits for "
            f"{self.lacking:,} more, which workers may begin; or set samplers.{name}."
            "samples_per_insert higher, or error_buffer wider"
        )


def inserts(state: SamplerState, without: Iterable[int] = ()) -> int:
    """Groups that were ready in the trainer epoch in effect.

    Args:
        without: packed references of groups that are fit for no batch.
    """
    refs = map(state.ready.packed.unpack, without)
    unfit = sum(1 for ref in refs if ref in state.ready and state.uses.is_fresh(ref))
    return state.uses.inserted(len(state.ready)) - unfit


def held_back(state: SamplerState, groups: int, without: Iterable[int] = ()) -> Held | None:
    """Why the next batch, of so many groups, waits by the ratio; None: it need not."""
    ratio = SampleToInsertRatio.of(state.choosing)
    if ratio is None:
        return None
    known, uses = inserts(state, without), state.uses.lately
    lacking = ratio.lacking(ratio.error(known, uses), groups)
    return Held(ratio, known, uses, groups, lacking) if lacking else None


def room_for_inserts(state: SamplerState, to_come: int) -> int | None:
    """How many more groups may be begun by the ratio; None: it limits nothing.

    What the groups of the past were used less often than they might have been is of no use where
    those that are left cannot be used as often instead: so no more is counted than these may be.

    Args:
        to_come: groups that were begun and may become ready.
    """
    ratio = SampleToInsertRatio.of(state.choosing)
    if ratio is None:
        return None
    error = ratio.error(inserts(state), state.uses.lately)
    if state.choosing.max_samples > 0:
        error = min(error, _uses_left(state, state.choosing.max_samples))
    return max(0, ratio.room(error) - to_come)


def most_room(choosing: Choosing) -> int | None:
    """The most groups that may be begun at one time by the ratio, when no insert is ahead; None: it
    limits nothing."""
    ratio = SampleToInsertRatio.of(choosing)
    return None if ratio is None else ratio.room(min(0.0, ratio.least))


def _uses_left(state: SamplerState, most: int) -> int:
    """How often groups may be served that are ready, or will be once their batch is acked."""
    ready = most * len(state.ready) - sum(map(state.uses.used_again, state.choosing.names()))
    _, left = state.unacked(most)
    return ready + left.total()
