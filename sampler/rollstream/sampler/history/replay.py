"""A served batch once more: recomputed from the logs, or checked against the files alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollstream.runtime.clock import Clock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.sampler.deciding.commands import Command, NextBatch, Replace
from rollstream.sampler.deciding.decide import Now, decide
from rollstream.sampler.deciding.known import LogId
from rollstream.sampler.deciding.state import SamplerState, position_of
from rollstream.sampler.errors import UnknownStep
from rollstream.sampler.serving.owner import sampler_section
from rollstream.schemas.digest import combined, row_digests
from rollstream.schemas.events import BatchServed, Replaced
from rollstream.store.blobs import Blobs
from rollstream.store.dataset import read_rows
from rollstream.store.errors import BlobMissing
from rollstream.store.layout import batch_path
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.owned.follow import Follower, Heard
from rollstream.streams.topics.layout import Layout

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
    config: RollstreamConfig,
    broker: Broker,
    timeout_s: float,
    clock: Clock | None = None,
) -> list[Replayed]:
    """Decides a step once more: from the logs up to its cursor, with the recorded seed and request.

    Args:
        config: with the settings of the sampler as they were when the step was served.
        timeout_s: for reading each log.

    Returns:
        The newest decision for the step and the replacements in it, in their order.

    Raises:
        UnknownStep: the log has no decision for the step.
    """
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
        TopicPartition(layout.groups(environment), partition): LogId(
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
        for heard in sealed:
            if heard.offset < ends[logs[heard.where]]:
                state.apply_groups(logs[heard.where], heard.offset, heard.event)
        for heard in decisions:
            if heard.offset < target.offset:
                state.apply(heard.offset, heard.timestamp_us, heard.event)
        found.append(_again(target.offset, event, state))
    return found


def check_from_files(store: Blobs, name: str, trainer_epoch: int, step: int) -> FileCheck:
    """Reads a projected decision and its rows, without any log.

    Raises:
        BlobMissing: the decision was not projected, or a file of it is gone. CorruptFile.
    """
    decision: dict[str, Any] = json.loads(store.read(batch_path(name, trainer_epoch, step)))
    digests: list[bytes] = []
    differing: list[str] = []
    for group in decision["groups"]:
        if "path" not in group:
            raise BlobMissing(f"the decision of step {step} names no file of {group['group_id']}")
        rows = read_rows(store, group["path"], ranges=[(group["row_start"], group["rows"])])
        (digest,) = row_digests(rows, [0])
        digests.append(digest)
        if digest.hex() != group["digest"]:
            differing.append(group["group_id"])
    return FileCheck(bytes.fromhex(decision["digest"]), combined(digests), tuple(differing))


def _again(offset: int, event: Choice, state: SamplerState) -> Replayed:
    command: Command
    if isinstance(event, BatchServed):
        asked = json.loads(event.request)
        command = NextBatch(step=event.step, **asked)
    else:
        places = tuple(event.places.tolist())
        digest = state.batches[event.step].digest
        command = Replace(step=event.step, digest=digest, places=places, reason=event.reason)
    again = decide(command, state, Now(event.epoch, event.nonce, event.now_ts))
    chosen = next((e for e in again if isinstance(e, BatchServed | Replaced)), None)
    if chosen is None:
        return Replayed(offset, event, (), b"")
    return Replayed(offset, event, tuple(g.group_id for g in chosen.groups), chosen.digest)


def _read(
    broker: Broker, logs: Sequence[TopicPartition], timeout_s: float, clock: Clock | None
) -> list[Heard]:
    follower = Follower(broker, dict.fromkeys(logs, 0), clock=clock)
    try:
        return follower.catch_up(timeout_s)
    finally:
        follower.close()
