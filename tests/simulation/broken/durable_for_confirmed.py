"""An owned log that acts on what is durable, without knowing what stands before it."""

from __future__ import annotations

from rollstream.runtime.deadline import Deadline
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.log import OwnedLog


class DurableForHeard(OwnedLog[SealFold]):
    """The report is taken for the proof."""

    def _read_gap(self, offset: int, deadline: Deadline) -> None:
        self._next = offset
