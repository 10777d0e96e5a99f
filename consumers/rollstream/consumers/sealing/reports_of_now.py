"""Reports what holds now of one partition: how many groups each producer has open, and what waits
for a rollout that it continues.
"""

from __future__ import annotations

from rollstream.consumers.beside.chores import Job
from rollstream.consumers.sealing.context import SealerContext
from rollstream.consumers.sealing.intake import Intake
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Continuation, PartitionReport, ProducerColumns
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.log import OwnedLog
from rollstream.streams.reports import REPEAT_S

REPORT_EVERY_S = 1.0
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
        self, context: SealerContext, log: OwnedLog[SealFold], partition: int, intake: Intake
    ) -> None:
        self._context = context
        self._log = log
        self._partition = partition
        self._intake = intake
        self._look_s = self._repeat_s = 0.0
        self._waiting = _NONE
        self._told = -1, _NONE  # Under which claim.

    def report(self, deadline: Deadline) -> Job | None:
        """A job.

        Raises:
            BrokerUnavailable: the end of the ingest log is not known.
        """
        if not self._context.reports.takes:
            return None
        now_s, producers = self._context.clock.monotonic_s(), self._intake.assembler.in_flight
        self._look_at_continuations(now_s)
        if now_s >= self._repeat_s and (producers or self._waiting != _NONE):
            producers.repeat()
        if not producers.complete and not self._intake.is_caught_up():
            return None
        changes, epoch = producers.changes(), self._log.epoch
        # A claim takes back what was said before it.
        told = self._told[1] if epoch == self._told[0] else _NONE
        if producers.complete and not changes and self._waiting == told:
            return None
        count, examples = self._waiting
        return self._send(
            PartitionReport(
                epoch=epoch,
                nonce=self._log.nonce,
                seal_offset=self._log.admitted,
                now_ts=self._intake.assembler.now_us,
                complete=not producers.complete,
                producers=ProducerColumns.of(changes),
                waiting=count,
                continuations=examples,
            )
        )

    def _send(self, report: PartitionReport) -> Job:
        if (yield self._context.reports.append(self._partition, report)):
            self._intake.assembler.in_flight.confirm(report.producers)
            self._told = report.epoch, (report.waiting, report.continuations)
            if report.complete:
                self._repeat_s = self._context.clock.monotonic_s() + REPEAT_S
        return REPORT_EVERY_S

    def _look_at_continuations(self, now_s: float) -> None:
        if now_s < self._look_s:
            return
        self._look_s = now_s + REPORT_EVERY_S
        until_us = self._intake.log_clock.now_us() - round(WAITED_S * 1e6)
        pending = self._intake.assembler.pending
        count, examples = pending.waiting_since(until_us, CONTINUATIONS_MAX)
        found = count, tuple(examples)
        # What a rollout continues may be among what is still to be read.
        if found != self._waiting and self._intake.is_caught_up():
            self._waiting = found
