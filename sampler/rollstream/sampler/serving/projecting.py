"""Decisions as JSON files under ``batches/``, written off the trainer's way.

The log is the truth: what is missing, or was left at an older decision, the next owner writes
again, and writing one twice writes the same bytes.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from rollstream.store.blobs import Blobs
from rollstream.store.errors import BlobMissing, StoreError
from rollstream.store.layout import batch_path
from rollstream.streams.folds.sampler.known import KnownGroup
from rollstream.streams.folds.sampler.served import ServedBatch
from rollstream.streams.folds.sampler.state import SamplerState

PENDING_MAX = 64  # Decisions that wait for the disk; beyond, the caller waits for room.
ROOM_WAIT_S = 10.0  # A disk that takes no decision for so long is not waited for.
CLOSE_WAIT_S = 10.0
_log = logging.getLogger("rollstream.sampler")


class _Decision(NamedTuple):
    batch: ServedBatch
    groups: Sequence[KnownGroup | None]


class Projector:
    """Writes decisions in a thread of its own, in the order in which they were handed in: of a
    step's decisions the newest stays. What the disk does not take in time the next owner writes.
    """

    def __init__(self, blobs: Blobs, sampler: str) -> None:
        self._blobs = blobs
        self._sampler = sampler
        # The room is counted apart from the queue, so that the word to end always finds some.
        self._room = threading.Semaphore(PENDING_MAX)
        self._pending: queue.SimpleQueue[_Decision | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def project(self, batch: ServedBatch, state: SamplerState) -> bool:
        """Hands in a decision that was confirmed; whether there was room for it in time."""
        decision = _Decision(batch, [state.group(chosen) for chosen in batch.groups])
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="rollstream-batches", daemon=True
            )
            self._thread.start()
        taken = self._room.acquire(timeout=ROOM_WAIT_S)
        if taken:
            self._pending.put(decision)
        else:
            _log.warning(
                "%s is not written: the store took none of %d others for %.0f s; the next start "
                "writes it",
                self._path(batch),
                PENDING_MAX,
                ROOM_WAIT_S,
            )
        return taken

    def project_missing(self, state: SamplerState) -> None:
        """What an owner before us may not have come to write."""
        for batch in state.batches.values():
            if not (batch.final and self._is_written(batch)) and not self.project(batch, state):
                return  # Nor would the rest find room.

    def close(self) -> None:
        """Waits until all is written, within a deadline."""
        if self._thread is None:
            return
        self._pending.put(None)
        self._thread.join(CLOSE_WAIT_S)
        if self._thread.is_alive():
            _log.warning(
                "decisions of sampler %r are still to be written after %.0f s; what this process "
                "does not come to write, the next start writes",
                self._sampler,
                CLOSE_WAIT_S,
            )
        self._thread = None

    def _is_written(self, batch: ServedBatch) -> bool:
        """Whether the newest decision of the batch lies there."""
        path = self._path(batch)
        if not batch.replacements:
            return self._blobs.info(path) is not None
        try:
            return batch.digest.hex().encode() in self._blobs.read(path)
        except BlobMissing:
            return False

    def _run(self) -> None:
        while (decision := self._pending.get()) is not None:
            self._room.release()
            self._write(decision)

    def _write(self, decision: _Decision) -> None:
        path = self._path(decision.batch)
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
        "digest": batch.digest.hex(),
        "cursor": [
            {
                "environment": at.environment,
                "generation": at.generation,
                "partition": at.partition,
                "groups_next_offset": at.groups_next_offset,
            }
            for at in batch.cursor
        ],
        "groups": [
            {
                "environment": chosen.environment,
                "generation": chosen.generation,
                "partition": chosen.partition,
                "offset": chosen.offset,
                "index": chosen.index,
                "group_id": chosen.group_id,
                "digest": chosen.digest.hex(),
                **_where(known),
            }
            for chosen, known in zip(batch.groups, groups, strict=True)
        ],
    }
    return orjson.dumps(content)


def _where(known: KnownGroup | None) -> dict[str, Any]:
    if known is None:
        return {}
    return {
        "path": known.file.path,
        "row_start": known.group.row_start,
        "rows": known.group.rows,
    }
