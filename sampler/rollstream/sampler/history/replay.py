"""A served batch once more: recomputed from the logs, or checked against the files alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from rollstream.runtime.clock import Clock
from rollstream.runtime.config.load import configured
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler.deciding.commands import Command, NextBatch, Replace
from rollstream.sampler.deciding.decide import Now, decide
from rollstream.sampler.errors import UnknownStep
from rollstream.sampler.serving.owner import sampler_section
from rollstream.schemas.digest import combined, row_digests
from rollstream.schemas.events import BatchServed, Replaced
from rollstream.schemas.ids import PartitionAddress
from rollstream.store.blobs import Blobs
from rollstream.store.dataset import read_rows
from rollstream.store.errors import BlobMissing
from rollstream.store.layout import batch_path
from rollstream.store.open import open_store
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.folds.sampler.state import SamplerState, position_of
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.owned.follow import ConfirmedEvent, Follower
from rollstream.streams.topics.layout import Layout

TIMEOUT_S = 600.0  # A long log takes a while.
Choice = BatchServed | Replaced


@dataclass(frozen=True, slots=True)
class Replayed:
    """A decision beside what deciding again gives.

    Attributes:
        offset: of the event in the decision log.
        event: as recorded.
        group_ids: that the same state, cursor and seed choose now.
        digest: of the batch that they make.
    """

    offset: int
    event: Choice
    group_ids: tuple[str, ...]
    digest: bytes

    @property
    def same(self) -> bool:
        """Whether both are the same batch."""
        return self.digest == self.event.digest


@dataclass(frozen=True, slots=True)
class FileCheck:
    """A projected decision beside the rows that the files hold.

    Attributes:
        recorded: digest of the batch.
        found: digest of the batch over the rows as they are now.
        differing: ids of groups whose rows are not those that were sealed.
    """

    recorded: bytes
    found: bytes
    differing: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether the files hold the batch bit for bit."""
        return self.recorded == self.found and not self.differing


def replay_step(
    name: str,
    step: int,
    *,
    config: RollstreamConfig | Path | str,
    broker: Broker | None = None,
    clock: Clock | None = None,
    timeout_s: float = TIMEOUT_S,
) -> list[Replayed]:
    """Decides a step once more: from the logs up to its cursor, with the recorded seed and request.

    Args:
        name: which ``[samplers.<name>]``.
        config: the configuration, or where it lies; with the settings of the sampler as they were
            when the step was served.
        broker, clock: from ``config`` and the system unless given.
        timeout_s: for reading each log.

    Returns:
        The newest decision for the step and the replacements in it, in their order.

    Raises:
        UnknownStep: the log has no decision for the step. ConfigError, UnknownSampler.
        BrokerUnavailable: a log was not read within ``timeout_s``.
    """
    loaded = configured(config)
    kafka = loaded.kafka
    with nullcontext(broker) if broker else KafkaBroker(kafka.bootstrap, kafka.client) as used:
        return _replay(name, step, loaded, used, timeout_s, clock)


def check_from_files(
    name: str,
    step: int,
    *,
    config: RollstreamConfig | Path | str,
    store: Blobs | None = None,
    trainer_epoch: int | None = None,
) -> FileCheck:
    """Reads a projected decision and its rows, without any log.

    Args:
        name: which ``[samplers.<name>]``.
        config: the configuration, or where it lies.
        store: from ``config`` unless given.
        trainer_epoch: in which the step was decided; None: the newest whose decision lies there.

    Raises:
        BlobMissing: the decision was not projected, or a file of it is gone. CorruptFile.
        ConfigError, UnknownSampler.
    """
    loaded = configured(config)
    sampler_section(name, loaded)
    used = open_store(loaded.store.root) if store is None else store
    if trainer_epoch is None:
        trainer_epoch = _newest_epoch(used, name, step)
    decision: dict[str, Any] = json.loads(used.read(batch_path(name, trainer_epoch, step)))
    digests: list[bytes] = []
    differing: list[str] = []
    for group in decision["groups"]:
        if "path" not in group:
            raise BlobMissing(f"the decision of step {step} names no file of {group['group_id']}")
        rows = read_rows(used, group["path"], ranges=[(group["row_start"], group["rows"])])
        (digest,) = row_digests(rows, [0])
        digests.append(digest)
        if digest.hex() != group["digest"]:
            differing.append(group["group_id"])
    return FileCheck(bytes.fromhex(decision["digest"]), combined(digests), tuple(differing))


def _replay(
    name: str,
    step: int,
    config: RollstreamConfig,
    broker: Broker,
    timeout_s: float,
    clock: Clock | None,
) -> list[Replayed]:
    section = sampler_section(name, config)
    layout = Layout(config.kafka.namespace, config.kafka.generation)
    decisions = _read(broker, [TopicPartition(layout.sampler(name), 0)], timeout_s, clock)
    served = [h for h in decisions if isinstance(h.event, BatchServed) and h.event.step == step]
    if not served:
        raise UnknownStep(f"the log of sampler {name!r} has no batch for step {step}")
    first = served[-1].offset
    targets = [
        h
        for h in decisions
        if h.offset == first
        or (isinstance(h.event, Replaced) and h.event.step == step and h.offset > first)
    ]
    logs = {
        TopicPartition(layout.groups(environment), partition): PartitionAddress(
            environment, layout.generation, partition
        )
        for environment in section.environments
        for partition in range(config.environments[environment].partitions)
    }
    sealed = _read(broker, list(logs), timeout_s, clock)
    found = []
    for target in targets:
        event = target.event
        assert isinstance(event, BatchServed | Replaced)
        seed = served[-1].event.seed if isinstance(served[-1].event, BatchServed) else section.seed
        state = SamplerState(name, section.model_copy(update={"seed": seed}), list(logs.values()))
        ends = position_of(event.cursor)
        for confirmed in sealed:
            if confirmed.offset < ends[logs[confirmed.where]]:
                state.apply_groups(logs[confirmed.where], confirmed.offset, confirmed.event)
        for confirmed in decisions:
            if confirmed.offset < target.offset:
                state.apply(confirmed.offset, confirmed.timestamp_us, confirmed.event)
        found.append(_again(target.offset, event, state))
    return found


def _newest_epoch(store: Blobs, name: str, step: int) -> int:
    """The newest trainer epoch in which a decision for the step was projected."""
    path = PurePosixPath(batch_path(name, 0, step))
    folder = path.parents[1]
    epochs = [
        int(found.parent.name.partition("=")[2])
        for blob in store.list(f"{folder}/")
        if (found := PurePosixPath(blob.path)).name == path.name
    ]
    if not epochs:
        raise BlobMissing(
            f"no decision of sampler {name!r} for step {step} lies under {folder}/; either the "
            "step was not served, or it is not yet written there: see store.root and the step, "
            "or read the logs with replay_step"
        )
    return max(epochs)


def _again(offset: int, event: Choice, state: SamplerState) -> Replayed:
    command: Command
    if isinstance(event, BatchServed):
        asked = json.loads(event.request)
        command = NextBatch(step=event.step, **asked)
    else:
        slots = tuple(event.slots.tolist())
        digest = state.batches[event.step].digest
        command = Replace(step=event.step, digest=digest, slots=slots, reason=event.reason)
    again = decide(command, state, Now(event.epoch, event.nonce, event.now_ts))
    chosen = next((e for e in again if isinstance(e, BatchServed | Replaced)), None)
    if chosen is None:
        return Replayed(offset, event, (), b"")
    return Replayed(offset, event, tuple(g.group_id for g in chosen.groups), chosen.digest)


def _read(
    broker: Broker, logs: Sequence[TopicPartition], timeout_s: float, clock: Clock | None
) -> list[ConfirmedEvent]:
    follower = Follower(broker, dict.fromkeys(logs, 0))
    try:
        return list(follower.read_to_end(Deadline(timeout_s, clock)))
    finally:
        follower.close()
