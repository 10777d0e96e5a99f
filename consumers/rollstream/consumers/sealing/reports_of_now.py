"""Reports what holds now of one partition: how many groups each producer has open, and what waits
for a rollout that it continues.
"""

from __future__ import annotations

from functools import partial

from rollstream.consumers.assembling import Assembler
from rollstream.consumers.sealing.context import SealerContext
from rollstream.consumers.sealing.intake import Intake
from rollstream.schemas.events import Continuation, PartitionReport
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.log import OwnedLog
from rollstream.streams.reports import REPEAT_S

REPORT_EVERY_S = 1.0
_ASK_AGAIN_S = 0.25  # Whether everything was read.
WAITED_S = 10.0  # What a rollout continues mostly comes sooner, from another worker's buffer.
CONTINUATIONS_MAX = 8  # That are named; all are counted.
_Waiting = tuple[int, tuple[Continuation, ...]]
_NONE: _Waiting = (0, ())


class ReportsOfNow:
    """Reports what changed: at once after a flush, else at most once in ``REPORT_EVERY_S``.

    The first report names all producers, and comes when everything was read that an earlier owner
    may have read. All are named again each ``REPEAT_S``. One report is on its way at a time, and
    nothing waits for it; what does not arrive is reported again.
    """

    def __init__(
        self, context: SealerContext, log: OwnedLog[SealFold], address: PartitionAddress
    ) -> None:
        self._context = context
        self._log = log
        self._partition = address.partition
        self._on_way: PartitionReport | None = None
        self.begin()

    def begin(self) -> None:
        """All that is pending is read anew."""
        self._due_s = self._look_s = self._repeat_s = 0.0
        self._late_s = 0.0  # When the one on its way is given up.
        self._waiting = _NONE
        self._told = -1, _NONE  # Under which claim.
        self._on_way = None

    def advance(self, intake: Intake) -> None:
        """Reports what is due.

        Raises:
            BrokerUnavailable: the end of the ingest log is not known.
        """
        now_s, assembler = self._context.clock.monotonic_s(), intake.assembler
        if self._on_way is not None and now_s >= self._late_s:
            self._on_way = None  # Whether it arrived or not: what it says is said again.
        if self._on_way is not None or now_s < self._due_s or not self._context.reports.takes:
            return
        self._look_at_continuations(intake, now_s)
        producers = assembler.in_flight
        if now_s >= self._repeat_s and (producers or self._waiting != _NONE):
            producers.repeat()
        if not producers.complete and not intake.is_caught_up():
            self._due_s = now_s + _ASK_AGAIN_S
        else:
            self._report(assembler, now_s)

    def flushed(self, assembler: Assembler) -> None:
        """A flush was committed: groups that ended with it are open no more."""
        if self._on_way is None and assembler.in_flight.complete and self._context.reports.takes:
            self._report(assembler, self._context.clock.monotonic_s())
        else:
            self._due_s = 0.0

    def _look_at_continuations(self, intake: Intake, now_s: float) -> None:
        if now_s < self._look_s:
            return
        self._look_s = now_s + REPORT_EVERY_S
        log_us = intake.log_clock.now_us()
        if log_us is None:
            return
        until_us = log_us - round(WAITED_S * 1e6)
        count, examples = intake.assembler.pending.waiting_since(until_us, CONTINUATIONS_MAX)
        found = count, tuple(examples)
        # What a rollout continues may be among what is still to be read.
        if found != self._waiting and intake.is_caught_up():
            self._waiting = found

    def _report(self, assembler: Assembler, now_s: float) -> None:
        producers = assembler.in_flight
        complete, changes = not producers.complete, producers.changes()
        epoch, told = self._log.epoch, self._told[1]
        if epoch != self._told[0]:  # A claim takes back what was said before it.
            told = _NONE
        if not (complete or changes or self._waiting != told):
            return
        count, examples = self._waiting
        report = PartitionReport(
            epoch=epoch,
            nonce=self._log.nonce,
            seal_offset=self._log.admitted,
            now_ts=assembler.now_us,
            complete=complete,
            producers=changes,
            waiting=count,
            continuations=examples,
        )
        ended = partial(self._ended, assembler, report)
        self._on_way = report
        if self._context.reports.append(self._partition, report, ended):
            self._due_s = now_s + REPORT_EVERY_S
            self._late_s = now_s + self._context.timeout_s
        else:
            self._on_way = None

    def _ended(self, assembler: Assembler, report: PartitionReport, arrived: bool) -> None:
        if self._on_way is not report:
            return  # All was begun anew.
        self._on_way = None
        if arrived:
            assembler.in_flight.confirm(report.producers)
            self._told = report.epoch, (report.waiting, report.continuations)
            if report.complete:
                self._repeat_s = self._context.clock.monotonic_s() + REPEAT_S
