"""Of which batches a share was handed out, and of which none is any more."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from rollstream.sampler.batch.decided import Decided
from rollstream.sampler.errors import BatchUnsettled

BATCHES_KEPT = 1_024  # More than are open by default; others are opened once more.


class HandedOut:
    """Settles whether a share of a batch is handed out, or its groups give way: never both. May be
    shared between threads, none of which waits for long.

    Attributes:
        undelivered: by step, the digest of a batch that was decided in this process and of which no
            share was handed out; such a one may still change.
    """

    def __init__(self) -> None:
        self.undelivered: dict[int, bytes] = {}
        self._opened: dict[int, tuple[bytes, bool]] = {}  # By step: digest, whether it was read.
        self._replaced: dict[tuple[int, bytes], None] = {}  # Step and digest: groups give way.
        self._noting = threading.Lock()

    def is_readable(self, batch: Decided) -> bool:
        """Whether all groups of the batch could be read, and none failed since."""
        return self._opened.get(batch.step) == (batch.digest, True)

    def has_failed(self, batch: Decided) -> bool:
        """Whether groups of the batch could not be read, and it was not opened since."""
        return self._opened.get(batch.step) == (batch.digest, False)

    def add(self, batch: Decided) -> None:
        """A share is handed out.

        Raises:
            BatchUnsettled: groups of the batch gave way, or are about to.
        """
        with self._noting:
            if (batch.step, batch.digest) in self._replaced:
                raise BatchUnsettled(
                    f"groups of the batch of step {batch.step} cannot be read, and others take "
                    "their places; repeat the call"
                )
            self.undelivered.pop(batch.step, None)
            _keep(self._opened, batch.step, (batch.digest, True))

    def add_failed(self, batch: Decided) -> None:
        """Groups of the batch could not be read."""
        with self._noting:
            _keep(self._opened, batch.step, (batch.digest, False))

    def begin_replacing(self, step: int, digest: bytes) -> bool:
        """From now on no share of this batch is handed out; False: one was."""
        with self._noting:
            if self.undelivered.get(step) != digest:
                return False
            _keep(self._replaced, (step, digest), None)
            return True

    def settle(self, standing: Mapping[int, bytes]) -> None:
        """Shares of these batches, digests by step, may be handed out: they stay as they are."""
        with self._noting:
            for batch in standing.items():
                self._replaced.pop(batch, None)


def _keep(noted: dict[Any, Any], key: object, value: object) -> None:
    noted[key] = value
    while len(noted) > BATCHES_KEPT:
        del noted[next(iter(noted))]
