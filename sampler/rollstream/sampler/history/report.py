"""What a sampler trained on and what it dropped, by environment, length, lag and step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from rollstream.folds.choosing import choosing_of
from rollstream.runtime.clock import Clock
from rollstream.runtime.config.load import configured
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler.configuration import seal_logs_of
from rollstream.sampler.errors import InvalidRequest
from rollstream.sampler.history.decisions import connected, read_decisions
from rollstream.sampler.history.report_fold import ReportFold
from rollstream.sampler.history.report_rows import Bounds, ReportCounters, ReportRow
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.owned.follow import ConfirmedEvent, Follower, PutAside
from rollstream.streams.topics.layout import Layout

TIMEOUT_S = 600.0  # Logs are read whole.
FLUSHES_READ_MAX = 8  # At a time, of each seal log: one may have megabytes.


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerReport:
    """What became of the rollouts that a sampler could serve, each counted once.

    Attributes:
        next_step: the first step that was not served.
        totals: of all of them; each table below adds up to this.
        by_environment: by name.
        by_length: by output tokens, in powers of two: first and last number; None: not known.
        by_lag: by the steps from the weights that sampled a rollout to the weights that were
            updated when it was trained or dropped, or now; likewise. (-1, -1): from the future of a
            trainer that went back. In a pool: to the newest published policy; None: none was.
        by_steps: by first and last step in which rollouts were trained or dropped; for others the
            step that was next when they became known.
        failures: why members failed, evaluations included: environment to reason to members, the
            most first. Reasons that differ only in numbers are one after the first four ("timeout
            after # s"). "" has those beyond 256 reasons of an environment, or 64 of a flush.
        carry_lost: groups that a step would have carried if their files were not lost, each with
            the reason: the newest 256. Nobody trains on the rest of them.
        ready: by step, how many known groups were neither taken nor dropped once it was decided.
        aside: seal logs that cannot be read to their ends, each with the reason; their rest is not
            counted.
    """

    sampler: str
    next_step: int
    totals: ReportRow
    by_environment: Mapping[str, ReportRow]
    by_length: Mapping[Bounds | None, ReportRow]
    by_lag: Mapping[Bounds | None, ReportRow]
    by_steps: Mapping[Bounds, ReportRow]
    failures: Mapping[str, Mapping[str, int]]
    carry_lost: Mapping[str, str]
    ready: Mapping[int, int]
    aside: Mapping[str, str] = field(default_factory=dict)


def report_of(
    name: str,
    *,
    config: RollstreamConfig | Path | str,
    first: int = 0,
    stop: int | None = None,
    environment: str | None = None,
    steps_a_row: int | None = None,
    broker: Broker | None = None,
    clock: Clock | None = None,
    timeout_s: float = TIMEOUT_S,
) -> SamplerReport:
    """Counts all rollouts of a sampler by what became of them, in bounded memory.

    It reads the decision log and the seal logs of its environments once, side by side.

    Args:
        name: of the sampler; it need not be configured any more.
        config: the configuration, or the path of its file.
        first: the first step that is counted. ``stop``: the first that is not; None: all are.
        environment: that is counted alone; None: all are.
        steps_a_row: of ``by_steps``; None: so many that there are at most 12 rows.
        broker: instead of the configured one; the caller closes it.
        clock: instead of the system's.
        timeout_s: for all of it.

    Raises:
        UnknownSampler: there is no decision log of that name.
        InvalidRequest: no such step or environment. BrokerUnavailable: not read in time.
    """
    settings = configured(config)
    if first < 0 or (stop is not None and stop <= first):
        raise InvalidRequest(f"steps {first} to {stop} are none; give a first one below the end")
    if steps_a_row is not None and steps_a_row < 1:
        raise InvalidRequest(f"a row of {steps_a_row} steps; give 1 or more")
    if environment is not None and environment not in settings.environments:
        raise InvalidRequest(
            f"environment {environment!r} is none of {', '.join(sorted(settings.environments))}"
        )
    counters = ReportCounters(first=first, stop=stop, environment=environment)
    section = settings.samplers.get(name)
    logs = [] if section is None else [*seal_logs_of(name, settings).values()]
    choosing = None if section is None else choosing_of(section, settings.environments)
    fold = ReportFold(counters, choosing)
    layout, deadline = Layout.of(settings.kafka), Deadline(timeout_s, clock)
    with connected(settings.kafka, broker) as used, ExitStack() as opened:
        sealed = _SealLogs(used, layout, deadline, opened)
        for decision in opened.enter_context(closing(read_decisions(used, layout, name, deadline))):
            for log, offset in fold.needed(decision.event).items():
                for one in sealed.below(log, offset):
                    fold.apply_groups(log, one.offset, one.event)
            fold.apply(decision.event)
        fold.end_decisions()
        for log in {*logs, *sealed.opened}:
            for one in sealed.rest(log):
                fold.apply_groups(log, one.offset, one.event)
    fold.end()
    return SamplerReport(
        sampler=name,
        next_step=fold.next_step,
        totals=counters.totals(),
        by_environment=counters.by_environment(),
        by_length=counters.by_length(),
        by_lag=counters.by_lag(),
        by_steps=counters.by_steps(steps_a_row),
        failures=counters.failures(),
        carry_lost=counters.carry_lost,
        ready=dict(sorted(counters.ready.items())),
        aside=sealed.unreadable(),
    )


class _SealLogs:
    """The events of seal logs that count, each read once; a log is opened when it is first asked
    for.

    Attributes:
        opened: of each log that was, the events that are still to be read.
    """

    def __init__(
        self, broker: Broker, layout: Layout, deadline: Deadline, open_until: ExitStack
    ) -> None:
        self._broker, self._layout, self._deadline = broker, layout, deadline
        self._open_until = open_until
        self.opened: dict[PartitionAddress, Iterator[ConfirmedEvent]] = {}
        self._next: dict[PartitionAddress, ConfirmedEvent] = {}
        self._aside: dict[TopicPartition, PutAside] = {}

    def unreadable(self) -> dict[str, str]:
        """Topic and partition to why the log cannot be read to its end."""
        return {str(where): str(one.error) for where, one in sorted(self._aside.items())}

    def below(self, log: PartitionAddress, offset: int) -> Iterator[ConfirmedEvent]:
        """The events before the offset that were not read yet; raises ``UnreadableLog`` where one
        of them cannot be."""
        while (one := self._next.pop(log, None) or next(self._events(log), None)) is not None:
            if one.offset >= offset:
                self._next[log] = one
                return
            yield one
        aside = self._aside.get(self._where(log))
        if aside is not None and aside.offset < offset:
            raise aside.error

    def rest(self, log: PartitionAddress) -> Iterator[ConfirmedEvent]:
        """Those up to the log's end, as it stood when the first one was read."""
        if (one := self._next.pop(log, None)) is not None:
            yield one
        yield from self._events(log)

    def _events(self, log: PartitionAddress) -> Iterator[ConfirmedEvent]:
        if log not in self.opened:
            reads = Follower(self._broker, {self._where(log): 0}, aside=self._aside)
            follower = self._open_until.enter_context(closing(reads))
            self.opened[log] = follower.read_to_end(self._deadline, records_max=FLUSHES_READ_MAX)
        return self.opened[log]

    def _where(self, log: PartitionAddress) -> TopicPartition:
        return self._layout._replace(generation=log.generation).groups_log(log)
