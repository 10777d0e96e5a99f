"""What is known of a sampler whose logs are gone: by the files under the store's root alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from rollstream.folds.choosing import choosing_of
from rollstream.folds.saved_state import from_bytes
from rollstream.folds.state import SamplerState
from rollstream.runtime.config.load import configured
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.sampler.configuration import sampler_config, seal_logs_of
from rollstream.sampler.engine.snapshots import identity_of
from rollstream.sampler.errors import UnknownSampler
from rollstream.sampler.history.batch_files import (
    DAMAGED,
    Known,
    Steps,
    groups_in,
    in_runs,
    standing_files,
)
from rollstream.schemas.events import Dropped, Resumed
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.reasons import DropReason
from rollstream.store.blobs import Blobs
from rollstream.store.bounded import open_bounded
from rollstream.store.errors import BlobMissing, CorruptFile
from rollstream.store.layout import (
    batch_in,
    batch_path,
    batches_prefix,
    manifests_prefix,
    offset_in,
    snapshot_offset_in,
    snapshots_prefix,
)
from rollstream.store.manifests import load_manifest
from rollstream.store.retired import NamedFile, retired_of
from rollstream.store.root_id import read_root_id
from rollstream.streams.folds.refs import GroupRef
from rollstream.streams.topics.layout import Layout

_OFFSET = 0  # Of no record: what files say was in the log that is gone.
_NO_CLAIM: Mapping[str, Any] = {"epoch": -1, "nonce": "", "now_ts": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownWithoutLogs:
    """What the files know of a sampler whose logs are gone. Nothing is guessed.

    Attributes:
        sampler: its name.
        log: topic of the decision log that is gone.
        snapshot: path of the snapshot that was used; empty: there is none.
        steps: all steps from 0 to the newest that a file knows of. Later steps are in no file: the
            trainer's newest checkpoint says whether there were any. If a step was decided again
            after a rewind, and its newer file is missing, the older batch is named. Without a
            snapshot, steps before a first ``resume(n)`` are in no file.
        replaced: steps in which groups gave way to others, and no file names those. They may be
            among ``ready``, as may groups that were dropped after the snapshot.
        ready: by environment, sorted ids of sealed groups that are in no known batch. Groups of
            steps that are in no file may be among them.
        waiting: number of groups that are sealed and cannot be served now.
        unreadable: files that were passed over, by path, and why. Their steps are in no file, or
            their groups are not among ``ready``.
    """

    sampler: str
    log: str
    snapshot: str
    steps: tuple[Steps, ...]
    replaced: tuple[int, ...]
    ready: Mapping[str, tuple[str, ...]]
    waiting: int
    unreadable: Mapping[str, str]

    @property
    def in_no_file(self) -> tuple[Steps, ...]:
        """The steps up to the newest known one of which nothing is known."""
        return tuple(one for one in self.steps if one.known == "in_no_file")


def known_without_logs(
    name: str, *, config: RollstreamConfig | Path | str, store: Blobs | None = None
) -> KnownWithoutLogs:
    """Returns what the files know of a sampler whose logs are gone. Writes nothing.

    It reads the newest snapshot, and the batch files and manifests behind it. A root that is whole
    has everything that the logs said, except acks, checkpoints, drops and rewinds after the
    snapshot.

    Args:
        name: of the sampler.
        config: the configuration that it ran with, or the path of its file.
        store: instead of the configured one; the caller closes it.

    Raises:
        ConfigError: the configuration is wrong.
        UnknownSampler: it has no sampler of this name, or the root has no file of that one.
        NewerFile: a newer version of Rollstream wrote a manifest.
        StoreError: the root is away.
    """
    settings = configured(config)
    choosing = choosing_of(sampler_config(name, settings), settings.environments)
    logs = [*seal_logs_of(name, settings).values()]
    files = _Files(
        store or open_bounded(settings.store),
        name,
        Layout.of(settings.kafka).sampler(name),
        logs,
        SamplerState(name, choosing, logs),
    )
    snapshot, state = files.newest_snapshot()
    named = files.batches()
    if not snapshot and not named:
        raise UnknownSampler(
            f"{settings.store.root} has no snapshot and no batch of a sampler {name!r} of the log "
            f"{files.log}; give the configuration as it was when the logs were lost, or correct "
            "the root"
        )
    later = [one for one in named if one >= (state.trainer_epoch, state.next_step)]
    named_steps = standing_files(later)
    _rewind(state, later)
    replaced = _replaced_in_open(files, state)
    standing: dict[int, int] = {}
    for step, epoch in sorted(named_steps.items()):
        decision = files.decision(epoch, step)
        if decision is not None:
            standing[step] = epoch
            _use(state, decision.groups)
            replaced += [step] if decision.replacements else []
    known = (*_by_snapshot(state), *_by_files(state.next_step, named_steps, standing))
    files.apply_manifests(state)
    return KnownWithoutLogs(
        sampler=name,
        log=files.log,
        snapshot=snapshot,
        steps=tuple(in_runs(known)),
        replaced=tuple(sorted(replaced)),
        ready=files.ready(state),
        waiting=len(state.waiting),
        unreadable=files.unreadable,
    )


class _Decision(NamedTuple):
    """What a batch file says; its groups are those after all replacements, and those carried."""

    digest: str
    replacements: int
    groups: tuple[GroupRef, ...]


def _rewind(state: SamplerState, later: Sequence[tuple[int, int]]) -> None:
    """Releases the batches that a later trainer epoch decided anew.

    Args:
        later: trainer epoch and step of the batch files of decisions that the state does not hold.
    """
    begun = [step for epoch, step in later if epoch > state.trainer_epoch]
    first = min(begun, default=state.next_step)
    if first >= state.next_step:
        return
    resumed = Resumed(
        **_NO_CLAIM,
        trainer_epoch=max(epoch for epoch, _ in later),
        checkpointed_step=first - 1 if first else None,
        later="release",
        first_step=first,
        policy_epoch=state.policy_epoch,
    )
    state.apply(_OFFSET, 0, resumed)


@dataclass(slots=True)
class _Files:
    """A sampler's files. What is damaged is passed over, and named in ``unreadable``."""

    store: Blobs
    name: str
    log: str
    seal_logs: Sequence[PartitionAddress]
    empty: SamplerState
    unreadable: dict[str, str] = field(default_factory=dict)

    def newest_snapshot(self) -> tuple[str, SamplerState]:
        """Its path and state; an empty one where no snapshot can be used."""
        identity = identity_of(self.name, self.log, read_root_id(self.store).root_id)
        listed = [blob.path for blob in self.store.list(snapshots_prefix(self.name, self.log))]
        for path in reversed([one for one in listed if snapshot_offset_in(one) is not None]):
            try:
                return path, from_bytes(self.store.read(path), identity, self.empty).fold
            except Exception as error:  # noqa: BLE001, whatever it is, the other files are there
                self.unreadable[path] = str(error) or repr(error)
        return "", self.empty

    def batches(self) -> list[tuple[int, int]]:
        """Trainer epoch and step of every batch file."""
        found = (batch_in(blob.path) for blob in self.store.list(batches_prefix(self.name)))
        return [one for one in found if one is not None]

    def decision(self, trainer_epoch: int, step: int) -> _Decision | None:
        """What the file of this step says; None: it is missing or damaged."""
        path = batch_path(self.name, trainer_epoch, step)
        try:
            content = orjson.loads(self.store.read(path))
            groups = tuple(group.ref for group in groups_in(content))
            return _Decision(content["digest"], content["replacements"], groups)
        except BlobMissing:
            return None
        except DAMAGED as error:
            self.unreadable[path] = f"it is damaged: {error!r}"
            return None

    def apply_manifests(self, state: SamplerState) -> None:
        """Folds the flushes behind those that the state holds."""
        for log in self.seal_logs:
            self._apply_manifests_of(log, state)

    def _apply_manifests_of(self, log: PartitionAddress, state: SamplerState) -> None:
        for blob in self.store.list(manifests_prefix(log)):
            offset = offset_in(blob.path)
            if offset is None or offset < state.applied(log):
                continue
            try:
                state.apply_groups(log, offset, load_manifest(self.store, blob.path).event)
            except (BlobMissing, CorruptFile) as error:
                self.unreadable[blob.path] = str(error)

    def ready(self, state: SamplerState) -> dict[str, tuple[str, ...]]:
        """By environment, ids of groups that are ready and whose files were not retired."""
        retired = {log: retired_of(self.store, log) for log in self.seal_logs}
        ids: defaultdict[str, list[str]] = defaultdict(list)
        for ref in state.ready.refs():
            known = state.sealed(ref)
            if not retired[ref.log].has(NamedFile(ref.offset, known.file.path)):
                ids[ref.environment].append(known.group.group_id)
        return {environment: tuple(sorted(of)) for environment, of in sorted(ids.items())}


def _replaced_in_open(files: _Files, state: SamplerState) -> list[int]:
    """Takes groups that came into open batches after the snapshot. Returns the steps in which
    there was more than one such replacement: of earlier ones no file names the groups."""
    steps = []
    for batch in state.open_batches():
        decision = files.decision(batch.event.trainer_epoch, batch.event.step)
        if decision is not None and decision.digest != batch.digest.hex():
            _use(state, decision.groups)
            if decision.replacements > batch.replacements + 1:
                steps.append(batch.event.step)
    return steps


def _use(state: SamplerState, groups: tuple[GroupRef, ...]) -> None:
    """None of the groups is ready any more."""
    parts = tuple(ref.event_ref() for ref in groups)
    used = Dropped(**_NO_CLAIM, reason=DropReason.BY_TRAINER.value, groups=parts)
    state.apply(_OFFSET, 0, used)


def _by_snapshot(state: SamplerState) -> Iterator[Steps]:
    """Of the steps that were decided before it."""
    opened = [batch.event.step for batch in state.open_batches()]
    first = min(opened, default=state.next_step)
    if first:
        yield Steps(0, first - 1, "final", None)
    for step in range(first, state.next_step):
        batch = state.batches[step]
        epoch = batch.event.trainer_epoch
        known: Known = "failed" if batch.status == "failed" else "trained"
        yield Steps(step, step, known if batch.status else "served", epoch)


def _by_files(first: int, named: Mapping[int, int], read: Mapping[int, int]) -> Iterator[Steps]:
    """Of the steps from ``first`` to the newest that a file is named by."""
    for step in range(first, max(named, default=first - 1) + 1):
        if step in read:
            yield Steps(step, step, "in_file", read[step])
        else:
            yield Steps(step, step, "in_no_file", None)
