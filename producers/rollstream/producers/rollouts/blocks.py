"""How groups and trajectories publish several entries, whichever producer sends them.

They are written as coroutines that await each entry: ``async with`` awaits them, and ``with`` runs
them at once, as queueing does not wait.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from rollstream.producers.engine.outbox import Outgoing

T = TypeVar("T")
Sends = Coroutine[Any, Any, T]


class Send(Protocol):
    """Gets entries of one group on their way, all of them or none, or raises; of an async producer,
    into the log. The other one never waits for the loop."""

    def __call__(self, outgoing: Sequence[Outgoing], *, raise_earlier: bool = True) -> Sends[None]:
        """``raise_earlier``: earlier failures are raised first, and then nothing is queued."""
