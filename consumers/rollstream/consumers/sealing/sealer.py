"""The sealer: run as many as you like, they share the partitions."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import ExitStack
from typing import Self

from rollstream.consumers.beside.context import ASK_S
from rollstream.consumers.beside.threads import CLAIMERS, LOOKERS, SealerThreads
from rollstream.consumers.retention.decisions import DecisionLogs
from rollstream.consumers.sealing.announced import AnnouncedPolicy
from rollstream.consumers.sealing.budget import MemoryBudget
from rollstream.consumers.sealing.context import SealerContext
from rollstream.consumers.sealing.dead_letters import DeadLetters
from rollstream.consumers.sealing.ends import ENDS_AT_ONCE, Ends
from rollstream.consumers.sealing.environment import EnvironmentSealer
from rollstream.consumers.sealing.flush import STEPS, FlushStep
from rollstream.consumers.sealing.metrics import SealerMetrics
from rollstream.consumers.sealing.reports_log import ReportsLog
from rollstream.consumers.sealing.scratch import Scratch
from rollstream.consumers.sealing.stats import SealerCounters, SealerStats
from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.entropy import Entropy, SystemEntropy
from rollstream.store import Blobs, Followed, open_store, read_root_id
from rollstream.store.bounded import bounded
from rollstream.store.errors import StoreHangs
from rollstream.streams.broker import Broker
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.owned.appends import Appends
from rollstream.streams.owned.clients import OwnerClients
from rollstream.streams.reading import POLL_RECORDS_MAX
from rollstream.streams.topics.check import require_topics
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.root import StoreRoot, require_root
from rollstream.streams.topics.specs import specs_for

WAIT_S = 0.02  # For records; or for the end of a job, while one runs.
IDLE_WAIT_S = 0.2  # For records, which end the wait, while no partition has anything to do.
OTHERS_WAIT_S = 0.05  # The same with several environments: records of another may come meanwhile.
STEP_S = 0.2  # How long one step of `run` may last.
_log = logging.getLogger("rollstream.sealer")


class Sealer:
    """Turns ingest logs into sealed groups. Every rollout is settled exactly once.

    Run as many sealers as you like: they share the partitions. Any of them may be killed at any
    moment. A group can be read once its flush is confirmed in the seal log. After a restart,
    unsealed rollouts are read again from the ingest log.

    Args:
        config: all of its environments are sealed.
        broker: instead of the configured one.
        store: likewise.
        clock: instead of the system's.
        entropy: likewise.
        owner: named in claims, for people.
        steps: of a flush; for tests.
        workers: run claims and flushes beside the loop, instead of threads of the sealer's own.
            ``close`` shuts them down. ``InlineExecutor()`` does everything in the caller's thread,
            for simulations.
        dead_letter_newer: records of producers newer than this sealer become dead letters, and
            their groups are sealed without them. By default such a record stops its partition until
            a newer sealer reads it.

    Attributes:
        left_behind: what had not ended when it was closed, in words; empty: everything had.

    Raises:
        TopicMismatch: topics are missing or not as they must be; the message says what to do.
        RootMismatch: the store's root is not the deployment's; ``create_deployment`` makes one.
        BrokerUnavailable: the broker did not answer in time.
        StoreHangs: nor did the store, within ``kafka.timeout_s``.
    """

    left_behind = ""
    _closed = False
    _is_behind = False  # Whether there may be more to read already: then no job is waited for.

    def __init__(
        self,
        config: RollstreamConfig,
        *,
        broker: Broker | None = None,
        store: Blobs | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        owner: str | None = None,
        steps: tuple[FlushStep, ...] = STEPS,
        workers: Executor | None = None,
        dead_letter_newer: bool = False,
    ) -> None:
        kafka, entropy = config.kafka, entropy or SystemEntropy()
        self._clock, self._config = clock or SystemClock(), config
        named = owner or f"sealer-{entropy.token(4)}"
        memory_max = config.sealers.memory_bytes
        self._metrics = metrics = SealerMetrics(config.metrics, self._clock, memory_max)
        self._own = ExitStack()
        broker = broker or self._own.enter_context(KafkaBroker(kafka.bootstrap, kafka.client))
        broker = metrics.timed_broker(broker)
        layout = Layout.of(kafka)
        partitions = {name: env.partitions for name, env in config.environments.items()}
        specs = specs_for(layout, partitions, rollouts_retention_hours=kafka.retention_hours)
        require_topics(broker.admin(), specs, kafka.timeout_s)
        blobs = metrics.timed_store(store or open_store(config.store))
        root = self._own_root(broker, blobs, layout, partitions)
        self._threads = threads = SealerThreads.of(workers, blobs.requests_at_once)
        # Of flushes, only one that others wrote before needs a reader, and only for a moment.
        self._clients = OwnerClients(broker, CLAIMERS + LOOKERS + ENDS_AT_ONCE + 1)
        ends = Ends(self._clients, threads.askers, self._clock, min(ASK_S, kafka.timeout_s))
        self._appends = Appends(threads.workers, self._clock, kafka.timeout_s)
        self._decisions = DecisionLogs(config, broker, root)
        self._letters = DeadLetters(broker, layout.dead_letters(), self._clock, threads.askers)
        self._counters = {name: SealerCounters() for name in config.environments}
        self._scratch = Scratch(self._clock)
        self._memory = MemoryBudget(memory_max)
        self._environments = [
            EnvironmentSealer(
                SealerContext(
                    environment=name,
                    config=section,
                    layout=layout,
                    broker=broker,
                    blobs=blobs,
                    clock=self._clock,
                    entropy=entropy,
                    owner=named,
                    root_id=root.root_id,
                    timeout_s=kafka.timeout_s,
                    threads=threads,
                    appends=self._appends,
                    clients=self._clients,
                    ends=ends,
                    memory=self._memory,
                    scratch=self._scratch,
                    letters=self._letters,
                    reports=ReportsLog(broker, layout.reports(name), self._clock),
                    counters=self._counters[name],
                    observe=metrics.observe,
                    decisions=self._decisions,
                    announced=AnnouncedPolicy.of(name, config, broker, layout),
                    dead_letter_newer=dead_letter_newer,
                ),
                steps,
            )
            for name, section in config.environments.items()
        ]
        metrics.show(self.stats, self._unready)

    def _own_root(
        self, broker: Broker, blobs: Blobs, layout: Layout, partitions: Mapping[str, int]
    ) -> StoreRoot:
        kafka = self._config.kafka
        deadline = Deadline(kafka.timeout_s, self._clock)
        root_id = read_root_id(bounded(blobs, kafka.timeout_s, self._clock))
        root = StoreRoot(self._config.store.root, root_id, Followed(blobs))
        require_root(broker, layout, partitions, root, deadline)
        return root

    def step(self, deadline: Deadline) -> None:
        """Reads, and advances every partition, until there is nothing to do or the deadline is
        over.

        A partition that cannot be read is put aside, and the others are sealed.

        Raises:
            PermanentBrokerError: it cannot go on until somebody changes something.
            StoreHangs: a call of the store has not ended for ``store.hang_timeout_s``.
        """
        while True:
            if (busy := self._busy()) and not self._is_behind:
                self._wait_for_job(deadline)
            self._metrics.came_round(self._hangs)
            self._appends.poll()
            self._clients.serve(self._clock.monotonic_s())
            longest_s = self._config.store.hang_timeout_s
            if busy and (hung := self._hangs(longest_s)):
                raise StoreHangs(
                    f"{hung}; this sealer gives its partitions back and ends, since nothing went "
                    f"on for store.hang_timeout_s = {longest_s:g}; find out what holds the store, "
                    "then start it again"
                )
            wait_s = 0.0 if busy else self._wait_s()
            read = [env.step(deadline.slice_s(wait_s)) for env in self._environments]
            self._is_behind = max(read) >= POLL_RECORDS_MAX
            if not (busy or any(read)) or deadline.passed():
                return

    def run(self, stopping: threading.Event) -> None:
        """Seals until ``stopping`` is set, then drains and leaves."""
        try:
            while not stopping.is_set():
                self.step(Deadline(STEP_S, self._clock))
        finally:
            self.close()

    def flush(self, timeout_s: float | None = None) -> None:
        """Seals every pending group that has ``min_group_size`` members, and returns once they are
        committed.

        Raises:
            BrokerUnavailable: not within ``timeout_s`` (``kafka.timeout_s``).
        """
        for environment in self._environments:
            environment.seal_pending()
        deadline = Deadline(
            self._config.kafka.timeout_s if timeout_s is None else timeout_s, self._clock
        )
        if not self._drain(deadline):
            raise BrokerUnavailable(
                f"flush: not all groups were committed within {deadline.timeout_s} s; they stay "
                "pending and are committed later"
            )

    def close(self) -> None:
        """Commits all decisions, writes late scores to files, leaves the group and closes.
        Idempotent.
        """
        if self._closed:
            return
        self._closed = True
        deadline = Deadline(self._config.kafka.timeout_s, self._clock)
        try:
            if self._drain(deadline):
                for environment in self._environments:
                    environment.finish_scores(deadline)
            else:  # Scores are left to a successor, too: it was waited for long enough.
                _log.warning("left without committing all that was decided; it will be read again")
        finally:
            self._end()

    def stats(self) -> SealerStats:
        """Returns totals since the sealer began, and the partitions that it owns now. Any thread
        may call it, also while another one steps the sealer."""
        partitions = [stats for env in self._environments for stats in env.stats()]
        return SealerStats(
            environments={name: one.stats() for name, one in self._counters.items()},
            dead_letters=self._letters.written,
            memory_bytes=self._memory.used,
            partitions=tuple(partitions),
        )

    def _end(self) -> None:
        """Releases everything. What calls a store that hangs is left behind."""
        threads, now = self._threads, Deadline(ASK_S, self._clock)
        ended = [pool.end(now) for pool in (threads.workers, threads.writers)]
        # A claim that has not begun would fence the next owner.
        ended += [pool.end(now, cancel=True) for pool in (threads.claimers, threads.lookers)]
        # What hangs is named before the partitions are released.
        unended = [one for environment in self._environments for one in environment.unended()]
        for environment in self._environments:
            environment.commit_last(Deadline(ASK_S, self._clock))
        # Each question has its own deadline, so they end.
        threads.askers.end(Deadline(2 * ASK_S, self._clock), cancel=True)
        for environment in self._environments:
            environment.leave()
        ended.append(threads.beside.end(Deadline(ASK_S, self._clock), cancel=True))
        if all(ended):
            self._decisions.close()
        else:
            self.left_behind = "; ".join(unended) or "a call of the store that hangs"
            _log.error("ended, and left behind: %s", self.left_behind)
        self._scratch.close()
        self._letters.close()
        self._clients.close()
        self._own.close()
        self._metrics.close()

    def _hangs(self, seconds: float) -> str:
        """As ``EnvironmentSealer.hangs``."""
        return next(filter(None, (one.hangs(seconds) for one in self._environments)), "")

    def _unready(self) -> str:
        """Why it seals nothing so far, in words; empty: it does, or it ended what it began."""
        if self._closed:
            return "it ends"
        if any(environment.has_joined for environment in self._environments):
            return ""
        return "its consumer group has given it no partition so far"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _drain(self, deadline: Deadline) -> bool:
        """Returns whether all that is decided was committed in time. Reads nothing meanwhile:
        under load that would never end."""
        while True:
            self._metrics.came_round(self._hangs)
            self._appends.poll()
            for environment in self._environments:
                environment.advance(draining=True)
            drained = all(environment.drained() for environment in self._environments)
            ended = drained and not self._busy()
            if ended or deadline.passed():
                return ended
            deadline.log_waiting(lambda: "what is decided to be committed")
            self._wait_for_job(deadline)

    def _wait_for_job(self, deadline: Deadline) -> None:
        """Returns once the broker has answered an append, if one is on its way, or else once a job
        has ended; after ``WAIT_S`` at the latest. Records that come meanwhile are read in one go.
        """
        wait_s = deadline.slice_s(WAIT_S)
        if self._appends.waiting:
            self._clients.poll(wait_s)
        else:
            self._clock.wait(self._threads.ended, wait_s)
        self._threads.ended.clear()

    def _wait_s(self) -> float:
        """How long each environment waits for records while no job runs."""
        if any(environment.has_work for environment in self._environments):
            return WAIT_S / len(self._environments)
        count = len(self._environments)
        return IDLE_WAIT_S if count == 1 else OTHERS_WAIT_S / count

    def _busy(self) -> bool:
        return any(environment.busy() for environment in self._environments)
