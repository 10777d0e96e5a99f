"""Of which batches a share was handed out, and of which none is any more."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from rollstream.sampler.batch.decided import Decided
from rollstream.sampler.errors import BatchUnsettled

# More than are open by default. Of an older one it counts that a share was handed out, and its
# files are opened once more.
BATCHES_KEPT = 1_024


class _Known(NamedTuple):
    """What is known of a batch.

    Attributes:
        undelivered: whether it was decided in this process, and no share of it was handed out.
        readable: whether its groups could be read when they were last opened; None: nobody did.
        gives_way: whether groups of it are replaced.
    """

    undelivered: bool = False
    readable: bool | None = None
    gives_way: bool = False


_NOTHING = _Known()


class HandedOut:
    """Settles whether a share of a batch is handed out, or its groups give way: never both. May be
    shared between threads, none of which waits for long."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, bytes], _Known] = {}  # By step and digest.
        self._updating = threading.Lock()

    def is_readable(self, batch: Decided) -> bool:
        """Whether all groups of the batch could be read, and none failed since."""
        return self._of(batch.step, batch.digest).readable is True

    def has_failed(self, batch: Decided) -> bool:
        """Whether groups of the batch could not be read, and it was not opened since."""
        return self._of(batch.step, batch.digest).readable is False

    def is_undelivered(self, step: int, digest: bytes) -> bool:
        """Whether the batch was decided in this process and no share of it was handed out, so that
        it may still change."""
        return self._of(step, digest).undelivered

    def decide(self, step: int, digest: bytes) -> None:
        """The batch is about to be decided: whether it was written is known before any share of it
        is handed out."""
        with self._updating:
            self._update(step, digest, undelivered=True)

    def add(self, batch: Decided) -> None:
        """A share is handed out.

        Raises:
            BatchUnsettled: groups of the batch gave way, or are about to.
        """
        with self._updating:
            if self._of(batch.step, batch.digest).gives_way:
                raise BatchUnsettled(
                    f"groups of the batch of step {batch.step} cannot be read, and others take "
                    "their places; repeat the call"
                )
            self._update(batch.step, batch.digest, undelivered=False, readable=True)

    def add_failed(self, batch: Decided) -> None:
        """Groups of the batch could not be read."""
        with self._updating:
            self._update(batch.step, batch.digest, readable=False)

    def begin_replacing(self, step: int, digest: bytes) -> bool:
        """From now on no share of this batch is handed out; False: one was."""
        with self._updating:
            if not self._of(step, digest).undelivered:
                return False
            self._update(step, digest, gives_way=True)
            return True

    def settle(self, standing: Mapping[int, bytes]) -> None:
        """Shares of these batches, digests by step, may be handed out: they stay as they are."""
        with self._updating:
            for step, digest in standing.items():
                if self._of(step, digest).gives_way:
                    self._update(step, digest, gives_way=False)

    def _of(self, step: int, digest: bytes) -> _Known:
        return self._known.get((step, digest), _NOTHING)

    def _update(self, step: int, digest: bytes, **found: Any) -> None:
        self._known[step, digest] = self._of(step, digest)._replace(**found)
        if len(self._known) > BATCHES_KEPT:
            del self._known[next(iter(self._known))]
