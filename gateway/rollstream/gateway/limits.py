"""What the requests of one process may take, in all and for each environment. Pure."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from rollstream.gateway.problems import Kind, Refused
from rollstream.runtime.config.gateway import GatewayConfig

_SHARES_MAX = 4  # A default share is at least a quarter of all.


class Limit:
    """Counts what is taken of one resource, and refuses what is too much.

    Args:
        setting: the key of ``[gateway]`` with the limit of all.
        taken: what is counted, for messages.
        most: the limit of all.
        each: the limit of each environment.
        kind: of the problem if all is taken. If one environment has its limit, it is ``FULL``.
    """

    def __init__(self, setting: str, taken: str, most: int, each: int, kind: Kind) -> None:
        self.in_all = 0
        self._of: Counter[str] = Counter()
        self._setting = setting
        self._taken = taken
        self._most = most
        self._each = each
        self._kind = kind

    def take(self, environment: str, size: int = 1, *, own: int | None = None) -> None:
        """Counts so much more for this environment. Without one only the limit of all holds.

        Args:
            own: what the call took before; a call beside which there is no other may be of any
                size. None: it may not.

        Raises:
            Refused: it would be too much; nothing was counted.
        """
        if self.in_all + size > self._most and self.in_all != own:
            raise _full(self._kind, f"{self.in_all} {self._taken}", self._setting, self._most)
        held, setting = self._of[environment], f"{self._setting}_per_environment"
        if environment and held + size > self._each and held != own:
            taken = f"{held} {self._taken} of environment {environment}"
            raise _full(Kind.FULL, taken, setting, self._each)
        self._of[environment] += size
        self.in_all += size

    def give(self, environment: str, size: int = 1) -> None:
        """Counts so much less."""
        self._of[environment] -= size
        self.in_all -= size


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
            share = max(least, most // max(1, min(environments, _SHARES_MAX)))
            own: int | None = getattr(config, f"{setting}_per_environment")
            return Limit(setting, taken, most, own or share, kind)

        return cls(
            limit("max_pending_bytes", "bytes on their way", Kind.FULL, config.max_body_bytes),
            limit("max_requests", "requests at once", Kind.BUSY),
            limit("max_connections", "open connections", Kind.BUSY),
        )


def _full(kind: Kind, taken: str, setting: str, most: int) -> Refused:
    finding = f"there are {taken}, and gateway.{setting} is {most}"
    return Refused(kind, finding, "send it again later, none of this call was taken")
