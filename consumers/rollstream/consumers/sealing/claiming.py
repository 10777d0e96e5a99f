"""Claims the seal log of a partition, and completes the manifests of its flushes."""

from __future__ import annotations

from rollstream.consumers.sealing.context import SealerContext
from rollstream.consumers.sealing.flush import project_missing
from rollstream.consumers.sealing.lost_logs import newest_manifest, require_log_of
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.metrics import catalogue
from rollstream.runtime.metrics.timings import timed
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.log import OwnedLog
from rollstream.streams.owned.log_clock import LogClock

ANSWER_S = 3.0  # A leader that is not silent says sooner where its log ends.


class Claims:
    """Jobs of a partition, one at a time. Manifests are listed once for each claim of a log that is
    not this owner's.

    Attributes:
        address: of the partition.
        log_clock: log time, since the newest claim.
        store_step: which of its steps calls the store now; empty: none does.
        went_on: another number than before where a job got to such a step, or behind it.
    """

    def __init__(
        self, context: SealerContext, address: PartitionAddress, log: OwnedLog[SealFold]
    ) -> None:
        self.store_step = ""
        self.went_on = 0
        self._context = context
        self.address = address
        self.log_clock = LogClock(context.clock)
        self._log = log
        self._answer_s = ANSWER_S

    def claim(self, hint: int | None) -> None:
        """Claims the log, a job.

        Args:
            hint: as ``OwnedLog.claim``.
        """
        context = self._context
        self._enter("")
        answer = Deadline(self._answer_s, context.clock)
        self._answer_s = min(2 * self._answer_s, context.timeout_s)  # For a leader that is slow.
        context.clients.wait_for_leader(self._log.where, answer)
        if self._log.place() is None:  # Else it is claimed again by its owner.
            # Before anything is appended: whoever is refused leaves the log as it was.
            self._enter("the look for manifests")
            newest = newest_manifest(context.blobs, self.address)
            self._enter("")
            deadline = context.deadline()
            with context.clients.reader(self._log.where, deadline) as reader:
                require_log_of(newest, reader, self._log.where, deadline)
        with timed(context.observe, context.clock, catalogue.SEALER_CLAIM, context.environment):
            self._log.claim(context.deadline(), hint=hint)
        self.log_clock = LogClock(context.clock, self._log.confirmed_us)
        self._answer_s = ANSWER_S

    def complete_manifests(self) -> None:
        """Writes the manifests that a predecessor left out, a job."""
        self._enter("project_missing")
        project_missing(self._context, self.address, self._log.fold.flushes)

    def _enter(self, store_step: str) -> None:
        self.store_step = store_step
        self.went_on += 1
