"""Decisions as JSON files under ``batches/``, written off the trainer's way.

The log is the truth: a projection that is missing is written again by the next owner, and writing
one twice writes the same bytes.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from rollstream.sampler.deciding.known import KnownGroup
from rollstream.sampler.deciding.served import ServedBatch
from rollstream.sampler.deciding.state import SamplerState
from rollstream.store.blobs import Blobs
from rollstream.store.errors import StoreError
from rollstream.store.layout import batch_path

PENDING_MAX = 64  # Decisions that wait for the disk; beyond, the caller writes its own.
CLOSE_WAIT_S = 10.0
_log = logging.getLogger("rollstream.sampler")


class _Decision(NamedTuple):
    batch: ServedBatch
    groups: Sequence[KnownGroup | None]


class Projector:
    """Writes decisions in a thread of its own, in the order in which they were handed in."""

    def __init__(self, blobs: Blobs, sampler: str) -> None:
        self._blobs = blobs
        self._sampler = sampler
        self._pending: queue.Queue[_Decision | None] = queue.Queue(PENDING_MAX)
        self._thread: threading.Thread | None = None

    def project(self, batch: ServedBatch, state: SamplerState) -> None:
        """Hands in a decision that was heard."""
        decision = _Decision(batch, [state.group(chosen) for chosen in batch.groups])
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="rollstream-batches", daemon=True
            )
            self._thread.start()
        try:
            self._pending.put_nowait(decision)
        except queue.Full:
            self._write(decision)

    def project_missing(self, state: SamplerState) -> None:
        """What an owner before us may not have come to write."""
        for batch in state.batches.values():
            path = batch_path(self._sampler, batch.event.trainer_epoch, batch.event.step)
            if not batch.final or self._blobs.info(path) is None:
                self.project(batch, state)

    def close(self) -> None:
        """Waits until all is written, within a deadline."""
        if self._thread is None:
            return
        self._pending.put(None, timeout=CLOSE_WAIT_S)
        self._thread.join(CLOSE_WAIT_S)
        self._thread = None

    def _run(self) -> None:
        while (decision := self._pending.get()) is not None:
            self._write(decision)

    def _write(self, decision: _Decision) -> None:
        event = decision.batch.event
        path = batch_path(self._sampler, event.trainer_epoch, event.step)
        try:
            self._blobs.replace(path, projection(self._sampler, *decision))
        except StoreError as error:
            _log.warning("%s was not written; the next start writes it: %s", path, error)


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
        "request": json.loads(event.request),
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
    return json.dumps(content, separators=(",", ":")).encode()


def _where(known: KnownGroup | None) -> dict[str, Any]:
    if known is None:
        return {}
    return {
        "path": known.file.path,
        "row_start": known.group.row_start,
        "rows": known.group.rows,
    }
