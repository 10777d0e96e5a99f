"""Failed deliveries that no caller was told of so far."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from rollstream.producers.engine.outbox import Outgoing
from rollstream.schemas.errors import RollstreamError

KEPT_MAX = 65_536  # A producer that is never flushed keeps no more; each is logged beyond.
Failed = Sequence[tuple[Outgoing, RollstreamError]]
_log = logging.getLogger("rollstream.producers")


class Failures:
    """Keeps failed deliveries until a call raises them. Any thread may use it.

    Attributes:
        delivered: entries that are in the log.
        failed: entries that are not, or perhaps not; both since the producer was made.

    Args:
        error_of: makes one error of several failures; ``outstanding`` and ``nothing_queued`` are
            those of ``DeliveryFailed``.
    """

    def __init__(self, error_of: Callable[[Failed, int, bool], RollstreamError]) -> None:
        self.delivered = self.failed = 0
        self._error_of = error_of
        self._kept: deque[tuple[Outgoing, RollstreamError]] = deque()

    def __bool__(self) -> bool:
        return bool(self._kept)

    def count(self, entries: int, error: RollstreamError | None) -> None:
        """Counts entries that were settled; whoever works calls it."""
        if error is None:
            self.delivered += entries
        else:
            self.failed += entries

    def keep(self, failed: Failed) -> None:
        """For ``raise_all``. That the producer lives is told again soon, so it is left out."""
        for one, error in failed:
            if not (one.rollout_uid or one.group_uid):
                continue
            if len(self._kept) < KEPT_MAX:
                self._kept.append((one, error))
            else:
                about = one.named or one.group_uid
                _log.error("%s was not delivered: %s; call flush() to be told", about, error)

    def raise_all(
        self, outstanding: Callable[[], int] = lambda: 0, *, nothing_queued: bool = False
    ) -> None:
        """Raises the failures since the last call as one error, if there are any.

        It asks what is ``outstanding`` after it has taken them, so that none counts as both.
        """
        failed = []
        while self._kept:
            try:
                failed.append(self._kept.popleft())
            except IndexError:  # Another thread raises it.
                break
        if failed:
            raise self._error_of(failed, outstanding(), nothing_queued)
