"""Tells env workers, from a thread, how many groups they may begin."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

from rollstream.runtime.clock import Clock
from rollstream.runtime.stepping import StepThread
from rollstream.sampler.admission.granting import REPEAT_S, Granting, Observed
from rollstream.sampler.serving.announcing import Announcer
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.events import SharesGranted
from rollstream.streams.errors import Fenced

LOOK_EVERY_S = 0.25
LEFT_REPEAT_S = 3_600.0  # What says that the sampler takes part no longer stays true.
CLOSE_WAIT_S = 5.0
_log = logging.getLogger("rollstream.sampler")


class ShareGranter:
    """Of one sampler, as long as it owns its decision log.

    Args:
        announcer: writes the records, and repeats them.
        observe: what the shares depend on; None: the log is not owned.
    """

    def __init__(
        self,
        granting: Granting,
        announcer: Announcer,
        observe: Callable[[], Observed | None],
        clock: Clock,
    ) -> None:
        self._granting = granting
        self._announcer = announcer
        self._observe = observe
        self._clock = clock
        self._follow: Callable[[], None] = lambda: None
        self._numbers = count()
        self._thread = StepThread(self._step, "rollstream-admission")
        self._started = self._stopping = False

    def start(self, follow: Callable[[], None] = lambda: None) -> None:
        """Begins to look, each ``LOOK_EVERY_S``; ``follow``, called before each look, folds what
        was sealed where nobody else does. Idempotent."""
        if not self._started:
            self._started, self._follow = True, follow
            self._thread.wake()

    def look(self) -> None:
        """Has written what changed. Called by one thread at a time."""
        seen = self._observe()
        if seen is not None:
            self._put(self._granting.changes(seen, self._clock.monotonic_s()))

    def close(self) -> None:
        """Says that the sampler leaves, unless another one owns its log. Idempotent."""
        if not self._started or self._stopping:
            return
        self._stopping = True
        self._thread.join(CLOSE_WAIT_S)
        seen = self._observe()
        if seen is not None:
            self._put(self._granting.leave(seen))

    def _put(self, records: Sequence[tuple[str, SharesGranted]]) -> None:
        for environment, record in records:

            def numbered(record: SharesGranted = record) -> SharesGranted:
                """Each time with another number: readers count its validity from then on."""
                return replace(record, number=next(self._numbers))

            every_s = REPEAT_S if record.valid_s > 0 else LEFT_REPEAT_S
            self._announcer.put(environment, "shares", numbered, every_s=every_s)

    def _step(self) -> float | None:
        if self._stopping:
            return None
        try:
            self._follow()
            self.look()
        except Fenced:
            return None
        except RollstreamError:
            pass  # The next call that decides meets it, and says so.
        except Exception:  # noqa: BLE001 - whatever it is, no trainer is to stop for it
            _log.exception("env workers are not told how many groups they may begin")
        return LOOK_EVERY_S
