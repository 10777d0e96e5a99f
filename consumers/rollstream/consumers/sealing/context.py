"""What everything that seals one environment shares."""

from __future__ import annotations

from dataclasses import dataclass

from rollstream.consumers.beside.context import OwnerContext
from rollstream.consumers.retention.decisions import DecisionLogs
from rollstream.consumers.sealing.announced import AnnouncedPolicy
from rollstream.consumers.sealing.budget import MemoryBudget
from rollstream.consumers.sealing.dead_letters import DeadLetters
from rollstream.consumers.sealing.ends import Ends
from rollstream.consumers.sealing.reports_log import ReportsLog
from rollstream.consumers.sealing.scratch import Scratch
from rollstream.consumers.sealing.stats import SealerCounters
from rollstream.runtime.entropy import Entropy
from rollstream.runtime.metrics.timings import Observe, observe_nothing
from rollstream.streams.owned.clients import OwnerClients


@dataclass(frozen=True, slots=True, kw_only=True)
class SealerContext(OwnerContext):
    """Configuration and services of one environment's sealing: built before its consumer group is
    joined, and handed on as it is.

    Attributes:
        owner: named in claims, for people.
        root_id: of the store's root, named in claims and flushes.
        clients: for all seal logs of the process.
        ends: of all ingest and seal logs of the process.
        memory, scratch: for the records of all partitions of the process.
        reports: takes what holds now of each partition.
        decisions: of its samplers; only what runs in ``threads.beside`` uses it.
        announced: the newest policy that groups are compared with; None: they are not.
        observe: takes durations of claims and flushes.
        dead_letter_newer: records of newer producers become dead letters; else they stop their
            partition.
    """

    entropy: Entropy
    owner: str
    root_id: str
    clients: OwnerClients
    ends: Ends
    memory: MemoryBudget
    scratch: Scratch
    letters: DeadLetters
    reports: ReportsLog
    counters: SealerCounters
    decisions: DecisionLogs
    announced: AnnouncedPolicy | None = None
    observe: Observe = observe_nothing
    dead_letter_newer: bool = False
