"""Log time of decisions, and what the decision log says of this machine's clock."""

from __future__ import annotations

from collections.abc import Sequence

from rollstream.runtime.clock import Clock
from rollstream.schemas.events import CursorRecorded, SamplerEvent
from rollstream.streams.owned.log_clock import LogClock


class DecisionClock(LogClock):
    """The log time of decisions, so that the same is decided whatever this machine's clock says.

    The newest cursor of a claim tells ``status`` how wrong that clock is. None: it is right.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.machine_us = clock.now_us
        self._told_us = 0

    def claimed(self, timestamp_us: int) -> None:
        """A claim was confirmed; no cursor comes after it so far."""
        self.confirmed(timestamp_us)
        self._told_us = 0

    def told(self, events: Sequence[SamplerEvent]) -> None:
        """These events were confirmed."""
        if events and isinstance(events[-1], CursorRecorded):
            self._told_us = self.ahead_us

    @property
    def is_untold(self) -> bool:
        """Whether the log does not say how wrong this machine's clock is."""
        return self.is_off(self._told_us)
