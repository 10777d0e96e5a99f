"""Writes decisions as JSON files under ``batches/``, in a thread, so that no decision waits for it.

The log is the truth: a file that is missing, or that holds an older decision, is written later, and
writing one twice writes the same bytes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from rollstream.folds.batches.served import ServedBatch
from rollstream.folds.group.known import KnownGroup
from rollstream.folds.state import SamplerState
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.stepping import StepThread
from rollstream.sampler.decide.batches.held_batches import served_rows
from rollstream.sampler.errors import SamplerError
from rollstream.schemas.events import ChosenGroup
from rollstream.store.blobs import Blobs
from rollstream.store.errors import BlobMissing, StoreAway, StoreError
from rollstream.store.followed import Followed
from rollstream.store.layout import batch_path, newest_batch_path, newest_batches_prefix

PENDING_MAX = 1_024  # Steps whose decision waits for the disk: more than a state holds by default.
CLOSE_WAIT_S = 10.0
_CHOSEN = ("environment", "generation", "partition", "offset", "index", "group_id", "digest")
_log = logging.getLogger("rollstream.sampler")


class _Decision(NamedTuple):
    batch: ServedBatch
    groups: Sequence[KnownGroup | None]
    check: bool  # Whether the file may hold it already.


class Projector:
    """Writes decisions in a thread of its own: who hands one in never waits for the disk.

    Of a step's decisions the newest stays. What does not fit into the queue is handed in again with
    a later decision, once the disk has written all that waited, or by the next owner.
    """

    def __init__(self, blobs: Blobs, sampler: str) -> None:
        self._blobs = blobs
        self._sampler = sampler
        # Guards the queue, and is notified of a change; nobody holds it while the disk works.
        self._changed = threading.Condition()
        # By path: a newer decision takes the older's turn.
        self._pending: dict[str, _Decision] = {}
        self._missed: set[int] = set()  # Steps that are held, whose decision did not fit.
        self._writing = False
        self._closed = False
        self._failure: SamplerError | None = None
        self._newest: tuple[int, int] | None = None  # Trainer epoch and step, as the root names it.
        self._named_in = ""  # The blob that names it.
        self._thread = StepThread(self._step, "rollstream-batches")

    def project(self, batch: ServedBatch, state: SamplerState) -> None:
        """Hands in a decision that was confirmed."""
        if self._missed and not self._pending:
            missed = [batch for step, batch in state.batches.items() if step in self._missed]
            self._missed.clear()
            self._hand_in([_decision(each, state, check=False) for each in missed], state)
        self._hand_in([_decision(batch, state, check=False)], state)

    def project_missing(self, state: SamplerState) -> None:
        """Hands in every decision that an earlier owner may have left unwritten."""
        held = [_decision(batch, state, check=batch.final) for batch in state.batches.values()]
        self._hand_in(held, state)

    def raise_failure(self) -> None:
        """Raises, once, what the thread met that no disk does; the next start tries again."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def wait_written(self, deadline: Deadline) -> None:
        """Returns once every decision that was handed in is written, or failed to be.

        Raises:
            StoreAway: the disk needs longer.
        """
        with self._changed:
            if not self._changed.wait_for(self._is_idle, deadline.left_s()):
                raise StoreAway(
                    f"{len(self._pending)} decisions of sampler {self._sampler!r} were not written "
                    f"within {deadline.timeout_s:.0f} s; see that the disk of store.root keeps up"
                )

    def close(self) -> None:
        """Waits until all is written, or ``CLOSE_WAIT_S``."""
        self._closed = True
        self._thread.join(CLOSE_WAIT_S)
        if not self._is_idle():
            _log.warning(
                "decisions of sampler %r are still to be written after %.0f s; those that this "
                "process does not write, the next start writes",
                self._sampler,
                CLOSE_WAIT_S,
            )

    def _hand_in(self, decisions: Sequence[_Decision], state: SamplerState) -> None:
        missed = set()
        with self._changed:
            for decision in decisions:
                path = self._path(decision.batch)
                if path in self._pending or len(self._pending) < PENDING_MAX:
                    self._pending[path] = decision
                else:
                    missed.add(decision.batch.event.step)
            if self._pending:
                self._thread.wake()
        if missed:
            if not self._missed:
                _log.warning(
                    "decisions of sampler %r from step %d on are not written yet: %d others wait "
                    "for the disk; a decision after these, or the next start, writes them",
                    self._sampler,
                    min(missed),
                    PENDING_MAX,
                )
            self._missed = (self._missed | missed) & state.batches.keys()

    def _step(self) -> float | None:
        """Writes all that waits."""
        while True:
            with self._changed:
                self._writing = bool(self._pending)
                self._changed.notify_all()
                if not self._writing:
                    return None if self._closed else threading.TIMEOUT_MAX
                path = next(iter(self._pending))
                decision = self._pending.pop(path)
            try:
                self._write(path, decision)
            except StoreError as error:
                _log.warning("%s was not written; the next start writes it: %s", path, error)
            except Exception as error:  # noqa: BLE001, whatever it is, the others are written
                self._failure = SamplerError(f"{path} cannot be written: {error!r}")
                self._failure.__cause__ = error

    def _write(self, path: str, decision: _Decision) -> None:
        self._name_newest(decision.batch)
        if not (decision.check and self._is_written(path, decision.batch)):
            self._blobs.replace(path, projection(self._sampler, decision.batch, decision.groups))

    def _name_newest(self, batch: ServedBatch) -> None:
        """Writes which batch is the newest, before its file, so that none is newer; never an older
        one again. What older claims wrote goes once there is a newer one."""
        if self._newest is None:
            self._newest = Followed(self._blobs).newest_batch(self._sampler)
        epoch, step = newest = (batch.event.trainer_epoch, batch.event.step)
        if self._newest is None or newest >= self._newest:
            content = {
                **{"trainer_epoch": epoch, "step": step},
                **{"replacements": batch.replacements, "digest": batch.digest},
            }
            path = newest_batch_path(self._sampler, batch.event.epoch)
            self._blobs.replace(path, orjson.dumps(content, default=bytes.hex))
            self._newest = newest
            if path != self._named_in:
                self._named_in = path
                for one in [*self._blobs.list(newest_batches_prefix(self._sampler))]:
                    if one.path < path:
                        self._blobs.delete(one.path)

    def _is_idle(self) -> bool:
        return not (self._pending or self._writing)

    def _is_written(self, path: str, batch: ServedBatch) -> bool:
        """Whether the file holds the newest decision of the batch."""
        if not batch.replacements:
            return self._blobs.info(path) is not None
        try:
            return batch.digest.hex().encode() in self._blobs.read(path)
        except BlobMissing:
            return False

    def _path(self, batch: ServedBatch) -> str:
        return batch_path(self._sampler, batch.event.trainer_epoch, batch.event.step)


def _decision(batch: ServedBatch, state: SamplerState, *, check: bool) -> _Decision:
    return _Decision(batch, list(map(state.group, batch.all_groups)), check)


def projection(sampler: str, batch: ServedBatch, groups: Sequence[KnownGroup | None]) -> bytes:
    """One decision as JSON: enough to read the same batch from the files alone."""
    event = batch.event
    content: dict[str, Any] = {
        "sampler": sampler,
        "trainer_epoch": event.trainer_epoch,
        "step": event.step,
        "batch_id": batch.batch_id,
        "ts": event.now_ts,
        "seed": event.seed,
        "request": orjson.loads(event.request),
        "policy_step": event.policy_step,
        "current_step": batch.current_step,
        "replacements": batch.replacements,
        "digest": batch.digest,
        "cursor": batch.cursor,
        "groups": [_group(*one) for one in zip(batch.groups, groups, strict=False)],
    }
    if batch.carried:
        content["carried"] = [
            {**_group(one.group, known), "wanted": one.wanted.tolist()}
            for one, known in zip(batch.carried, groups[len(batch.groups) :], strict=True)
        ]
    return orjson.dumps(content, default=bytes.hex)


def _group(chosen: ChosenGroup, known: KnownGroup | None) -> dict[str, Any]:
    """With the indexes in its file of the rows that the batch has, where its file is known."""
    content = {name: getattr(chosen, name) for name in _CHOSEN}
    if known is not None:
        start = known.group.row_start
        indexes = (start + served_rows(chosen, known)).tolist()
        content |= {"path": known.file.path, "row_start": start, "rows": known.group.rows}
        content["row_indexes"] = indexes
    if chosen.row_mask is not None:
        content["row_mask"] = chosen.row_mask.tolist()
    if chosen.scores:
        content["scores"] = [one._asdict() for one in chosen.scores]
    return content
