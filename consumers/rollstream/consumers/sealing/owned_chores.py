"""What the owner of a partition does now and then."""

from __future__ import annotations

from functools import partial

from rollstream.consumers.beside.chores import IN_LOOP, Chore, Chores
from rollstream.consumers.retention.owner import retention_chores
from rollstream.consumers.sealing.context import SealerContext
from rollstream.consumers.sealing.flush_requests import FlushRequests
from rollstream.consumers.sealing.intake import Intake
from rollstream.consumers.sealing.reports import report_dispatched
from rollstream.consumers.sealing.reports_of_now import ReportsOfNow
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.log import OwnedLog


def owned_chores(
    context: SealerContext,
    address: PartitionAddress,
    log: OwnedLog[SealFold],
    intake: Intake,
    requests: FlushRequests,
) -> tuple[Chores, ...]:
    """From a claim on: those that report what holds now, that use the log, and that files need."""
    clock = context.clock
    now = ReportsOfNow(context, log, address.partition, intake)
    dispatched = partial(report_dispatched, context, log, intake.assembler)
    chore = partial(Chore, runs_in=IN_LOOP, timeout_s=context.timeout_s)
    staged = Chore(
        "staged files", requests.delete_settled, context.threads.beside, context.timeout_s
    )
    using_log = [chore("requests", requests.look), chore("dispatched groups", dispatched)]
    return (
        Chores(str(address), clock, [chore("reports", now.report)]),
        Chores(str(address), clock, using_log),
        Chores(str(address), clock, [staged]),
        retention_chores(context, address, log, context.decisions, intake.log_clock.now_us),
    )
