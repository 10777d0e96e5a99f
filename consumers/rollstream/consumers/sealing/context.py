"""What everything that seals one environment shares."""

from __future__ import annotations

from dataclasses import dataclass

from rollstream.consumers.retention.decisions import DecisionLogs
from rollstream.consumers.sealing.announced import AnnouncedPolicy
from rollstream.consumers.sealing.budget import MemoryBudget
from rollstream.consumers.sealing.dead_letters import DeadLetters
from rollstream.consumers.sealing.reports_log import ReportsLog
from rollstream.consumers.sealing.scratch import Scratch
from rollstream.consumers.sealing.stats import SealerCounters
from rollstream.consumers.sealing.threads import SealerThreads
from rollstream.runtime.clock import Clock
from rollstream.runtime.config.sections import EnvironmentConfig
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.entropy import Entropy
from rollstream.store import Blobs
from rollstream.streams.broker import Broker
from rollstream.streams.owned.appends import Appends
from rollstream.streams.owned.clients import OwnerClients
from rollstream.streams.topics.layout import Layout

ASK_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SealerContext:
    """Configuration and services of one environment's sealing: built before its consumer group is
    joined, and handed on as it is.

    Attributes:
        owner: named in claims, for people.
        root_id: of the store's root, named in claims and flushes.
        threads: run what the loop does not wait for; each question to the broker takes at most
            ``ask_s``.
        appends: what is on its way into seal logs.
        clients: for all seal logs of the process.
        memory, scratch: for the records of all partitions of the process.
        reports: takes what holds now of each partition.
        decisions: of its samplers; only what runs in ``threads.beside`` uses it.
        announced: the newest policy that groups are compared with; None: they are not.
        dead_letter_newer: records of newer producers become dead letters; else they stop their
            partition.
    """

    environment: str
    config: EnvironmentConfig
    layout: Layout
    broker: Broker
    blobs: Blobs
    clock: Clock
    entropy: Entropy
    owner: str
    root_id: str
    timeout_s: float
    threads: SealerThreads
    appends: Appends
    clients: OwnerClients
    memory: MemoryBudget
    scratch: Scratch
    letters: DeadLetters
    reports: ReportsLog
    counters: SealerCounters
    decisions: DecisionLogs
    announced: AnnouncedPolicy | None = None
    dead_letter_newer: bool = False

    @property
    def ask_s(self) -> float:
        """How long one question to the broker may take; it is asked again."""
        return min(ASK_S, self.timeout_s)

    def deadline(self) -> Deadline:
        """A new deadline, ``timeout_s`` from now."""
        return Deadline(self.timeout_s, self.clock)
