"""What a sampler knows by its claim: whether it owns its decision log, and log time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from rollstream.runtime.clock import Clock
from rollstream.sampler.errors import SamplerUnavailable
from rollstream.schemas.events import CursorRecorded, SamplerEvent
from rollstream.streams.errors import Fenced
from rollstream.streams.owned.log_clock import LogClock


class Ownership(NamedTuple):
    """What a sampler knows of its claim.

    Attributes:
        state: ``unclaimed``: it never claimed, or does not know any more what was written, and may
            claim (again); ``owner``; ``fenced``: another one took over; ``closed``. The last two
            are for good.
        why: what every call is told then.
    """

    state: Literal["unclaimed", "owner", "fenced", "closed"]
    why: str = ""

    @property
    def is_over(self) -> bool:
        """Whether it stays so."""
        return self.state in ("fenced", "closed")

    def error(self) -> Fenced | SamplerUnavailable:
        """What every call raises once it is over."""
        return Fenced(self.why) if self.state == "fenced" else SamplerUnavailable(self.why)

    def check(self) -> None:
        """Raises ``error`` where it is over."""
        if self.is_over:
            raise self.error()


UNCLAIMED = Ownership("unclaimed")
OWNER = Ownership("owner")


class DecisionClock(LogClock):
    """The log time of decisions, so that the same is decided whatever this machine's clock says.

    The newest cursor of a claim tells ``status`` how wrong that clock is; without one it is right.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, may_go_back=True)  # No decision needs it to rise.
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
