"""Whether a sampler owns its decision log. Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple

from rollstream.sampler.errors import SamplerUnavailable
from rollstream.streams.errors import Fenced


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
