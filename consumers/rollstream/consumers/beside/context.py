"""What the work of a partition's owner needs."""

from __future__ import annotations

from dataclasses import dataclass

from rollstream.consumers.beside.threads import SealerThreads
from rollstream.runtime.clock import Clock
from rollstream.runtime.config.sections import EnvironmentConfig
from rollstream.runtime.deadline import Deadline
from rollstream.store import Blobs
from rollstream.streams.broker import Broker
from rollstream.streams.owned.appends import Appends
from rollstream.streams.topics.layout import Layout

ASK_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerContext:
    """Configuration and services of one environment, for the owners of its partitions.

    Attributes:
        threads: run what the loop does not wait for; each question to the broker takes at most
            ``ask_s``.
        appends: what is on its way into seal logs.
    """

    environment: str
    config: EnvironmentConfig
    layout: Layout
    broker: Broker
    blobs: Blobs
    clock: Clock
    timeout_s: float
    threads: SealerThreads
    appends: Appends

    @property
    def ask_s(self) -> float:
        """How long one question to the broker may take; it is asked again."""
        return min(ASK_S, self.timeout_s)

    def deadline(self) -> Deadline:
        """A new deadline, ``timeout_s`` from now."""
        return Deadline(self.timeout_s, self.clock)
