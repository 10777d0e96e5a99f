"""What the requests of one process may take, in all and for each environment. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from rollstream.gateway.problems import Kind, Refused
from rollstream.runtime.config.gateway import GatewayConfig

# A default share is at least a quarter of all. Half of all is kept for the environments, in equal
# parts, so that few of many never take everything.
_SHARES_MAX = 4


@dataclass(eq=False)
class Limit:
    """Counts what is taken of one resource, and refuses what is too much.

    Args:
        setting: the key of ``[gateway]`` with the limit of all.
        taken: what is counted, for messages.
        most: the limit of all.
        each: the limit of each environment.
        kept: of all, how much nobody but an environment itself takes. Beyond it they share what is
            left.
        shared: how much that is.
        kind: of the problem if all is taken. If one environment has its limit, it is ``FULL``.
    """

    _setting: str
    _taken: str
    most: int
    _each: int
    _kept: int
    _shared: int
    _kind: Kind
    in_all: int = 0
    _beyond: int = 0  # What environments have together beyond what is kept for each.
    _of: Counter[str] = field(default_factory=Counter)

    def take(self, environment: str, size: int = 1, *, own: int | None = None) -> None:
        """Counts so much more for this environment. Without one only the limit of all holds.

        Args:
            own: what the call took before; a call beside which there is no other may be of any
                size. None: it may not.

        Raises:
            Refused: it would be too much; nothing was counted.
        """
        if self.in_all + size > self.most and self.in_all != own:
            raise _full(self._kind, f"{self.in_all} {self._taken}", self._setting, self.most)
        held, setting = self._of[environment], f"{self._setting}_per_environment"
        more = self._more_beyond(environment, held, size)
        if environment and held != own:
            if held + size > self._each:
                taken = f"{held} {self._taken} of environment {environment}"
                raise _full(Kind.FULL, taken, setting, self._each)
            if more and self._beyond + more > self._shared:
                taken = f"{self._beyond} {self._taken} beyond {self._kept} of each environment"
                raise _full(Kind.FULL, taken, self._setting, self.most)
        self._of[environment] += size
        self._beyond += more
        self.in_all += size

    def give(self, environment: str, size: int = 1) -> None:
        """Counts so much less."""
        self._beyond += self._more_beyond(environment, self._of[environment], -size)
        self._of[environment] -= size
        self.in_all -= size

    def _more_beyond(self, environment: str, held: int, size: int) -> int:
        if not environment:
            return 0
        return max(0, held + size - self._kept) - max(0, held - self._kept)


class Limits(NamedTuple):
    """All limits of a process."""

    pending_bytes: Limit
    requests: Limit
    connections: Limit

    @classmethod
    def of(cls, config: GatewayConfig, environments: int) -> Limits:
        """The limits if there are so many environments."""

        def limit(setting: str, taken: str, kind: Kind, least: int = 1) -> Limit:
            most: int = getattr(config, setting)
            each: int | None = getattr(config, f"{setting}_per_environment")
            if each is not None:
                return Limit(setting, taken, most, each, 0, most, kind)
            share = max(least, most // max(1, min(environments, _SHARES_MAX)))
            kept = most // (2 * max(1, environments))  # Of very many environments it may be none.
            return Limit(setting, taken, most, share, kept, most - environments * kept, kind)

        return cls(
            limit("max_pending_bytes", "bytes on their way", Kind.FULL, config.max_body_bytes),
            limit("max_requests", "requests at once", Kind.BUSY),
            limit("max_connections", "open connections", Kind.BUSY),
        )


def _full(kind: Kind, taken: str, setting: str, most: int) -> Refused:
    finding = f"there are {taken}, and gateway.{setting} is {most}"
    return Refused(kind, finding, "send it again later, none of this call was taken")
