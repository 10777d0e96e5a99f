"""Writes decisions as JSON files under ``batches/``, in a thread, so that no trainer waits for it.

The log is the truth: a file that is missing, or that holds an older decision, is written by the
next owner, and writing one twice writes the same bytes.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from typing import Any

import orjson

from rollstream.store.blobs import Blobs
from rollstream.store.errors import BlobMissing, StoreError
from rollstream.store.layout import batch_path
from rollstream.streams.folds.sampler.known import KnownGroup
from rollstream.streams.folds.sampler.served import ServedBatch
from rollstream.streams.folds.sampler.state import SamplerState

PENDING_MAX = 64  # Decisions that wait for the disk; the caller waits to hand in another.
QUEUE_WAIT_S = 10.0  # The longest that a caller waits for that.
CLOSE_WAIT_S = 10.0
_CHOSEN = ("environment", "generation", "partition", "offset", "index", "group_id", "digest")
_log = logging.getLogger("rollstream.sampler")


_Decision = tuple[ServedBatch, Sequence[KnownGroup | None]]


class Projector:
    """Writes decisions in the order in which they were handed in, so that of a step's decisions the
    newest stays. Those that the disk does not take in time are left to the next owner.
    """

    def __init__(self, blobs: Blobs, sampler: str) -> None:
        self._blobs = blobs
        self._sampler = sampler
        # A semaphore bounds the queue, so that the None that ends it can always be put.
        self._capacity = threading.Semaphore(PENDING_MAX)
        self._pending: queue.SimpleQueue[_Decision | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def project(self, batch: ServedBatch, state: SamplerState) -> bool:
        """Hands in a decision that was confirmed; returns whether the queue took it in time."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="rollstream-batches", daemon=True
            )
            self._thread.start()
        taken = self._capacity.acquire(timeout=QUEUE_WAIT_S)
        if taken:
            self._pending.put((batch, list(map(state.group, batch.groups))))
        else:
            _log.warning(
                "%s is not written: the store took none of %d others for %.0f s; the next start "
                "writes it",
                self._path(batch),
                PENDING_MAX,
                QUEUE_WAIT_S,
            )
        return taken

    def project_missing(self, state: SamplerState) -> None:
        """Hands in every decision that an earlier owner may have left unwritten."""
        for batch in state.batches.values():
            if not (batch.final and self._is_written(batch)) and not self.project(batch, state):
                return  # Nor would the queue take the rest.

    def close(self) -> None:
        """Waits until all is written, or ``CLOSE_WAIT_S``."""
        if self._thread is None:
            return
        self._pending.put(None)
        self._thread.join(CLOSE_WAIT_S)
        if self._thread.is_alive():
            _log.warning(
                "decisions of sampler %r are still to be written after %.0f s; those that this "
                "process does not write, the next start writes",
                self._sampler,
                CLOSE_WAIT_S,
            )
        self._thread = None

    def _is_written(self, batch: ServedBatch) -> bool:
        """Whether the file holds the newest decision of the batch."""
        path = self._path(batch)
        if not batch.replacements:
            return self._blobs.info(path) is not None
        try:
            return batch.digest.hex().encode() in self._blobs.read(path)
        except BlobMissing:
            return False

    def _run(self) -> None:
        while (decision := self._pending.get()) is not None:
            self._capacity.release()
            path = self._path(decision[0])
            try:
                self._blobs.replace(path, projection(self._sampler, *decision))
            except StoreError as error:
                _log.warning("%s was not written; the next start writes it: %s", path, error)

    def _path(self, batch: ServedBatch) -> str:
        return batch_path(self._sampler, batch.event.trainer_epoch, batch.event.step)


def projection(sampler: str, batch: ServedBatch, groups: Sequence[KnownGroup | None]) -> bytes:
    """One decision as JSON: enough to read the same batch from the files alone."""
    event = batch.event
    content: dict[str, Any] = {
        "sampler": sampler,
        "trainer_epoch": event.trainer_epoch,
        "step": event.step,
        "batch_id": event.batch_id,
        "ts": event.now_ts,
        "seed": event.seed,
        "request": orjson.loads(event.request),
        "policy_step": event.policy_step,
        "replacements": batch.replacements,
        "digest": batch.digest,
        "cursor": batch.cursor,
        "groups": [
            {**{name: getattr(chosen, name) for name in _CHOSEN}, **_rows_of(known)}
            for chosen, known in zip(batch.groups, groups, strict=True)
        ],
    }
    return orjson.dumps(content, default=bytes.hex)


def _rows_of(known: KnownGroup | None) -> dict[str, Any]:
    if known is None:
        return {}
    group = known.group
    return {"path": known.file.path, "row_start": group.row_start, "rows": group.rows}
