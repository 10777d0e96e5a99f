"""An owned log that appends again when a report is lost, instead of claiming again."""

from __future__ import annotations

from rollstream.runtime.deadline import Deadline
from rollstream.streams.errors import DeliveryUnknown
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.log import OwnedLog, Ticket


class WithoutDoubt(OwnedLog[SealFold]):
    """What was not reported is taken for not written."""

    def wait_confirmed(self, ticket: Ticket, deadline: Deadline) -> int:
        first = self._sending.first()
        try:
            return super().wait_confirmed(ticket, deadline)
        except DeliveryUnknown:
            if first is None or self._next is None:
                raise
            self._sending.throw_away()
            self._trouble = None
            return super().wait_confirmed(self.append(first.event), deadline)
