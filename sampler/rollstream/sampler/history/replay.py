"""Served batches: recomputed from the logs, or checked against the files alone."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, SupportsIndex

from rollstream.runtime.clock import Clock
from rollstream.runtime.config.load import configured
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler.arguments import whole_number
from rollstream.sampler.deciding.batches import NextBatch, Replace
from rollstream.sampler.deciding.command import Now
from rollstream.sampler.errors import UnknownStep
from rollstream.sampler.serving.configuration import sampler_config, seal_logs_of
from rollstream.schemas.digest import combined, row_digests
from rollstream.schemas.events import BatchServed, Replaced
from rollstream.schemas.ids import PartitionAddress
from rollstream.store.blobs import Blobs
from rollstream.store.dataset import read_rows
from rollstream.store.errors import BlobMissing
from rollstream.store.layout import batch_path
from rollstream.store.open import open_store
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.folds.sampler.choosing import choosing_of
from rollstream.streams.folds.sampler.state import SamplerState, position_of
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.owned.follow import ConfirmedEvent, Follower
from rollstream.streams.topics.layout import Layout

TIMEOUT_S = 600.0  # A long log takes a while.
Choice = BatchServed | Replaced


@dataclass(frozen=True, slots=True)
class Replayed:
    """A recorded decision, and what the same state decides now.

    Attributes:
        offset: of the event in the decision log.
        event: as recorded.
        group_ids: the groups that are chosen now.
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


class _Chosen(NamedTuple):
    """A recorded choice, and its offset in the decision log."""

    offset: int
    event: Choice


@dataclass(frozen=True, slots=True)
class FileCheck:
    """The digest of a projected decision, and that of the rows that the files hold.

    Attributes:
        recorded: digest of the batch when it was decided.
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
    step: SupportsIndex,
    *,
    config: RollstreamConfig | Path | str,
    broker: Broker | None = None,
    clock: Clock | None = None,
    timeout_s: float = TIMEOUT_S,
) -> list[Replayed]:
    """Decides a step once more: from the logs up to its cursor, with the recorded seed and request.

    Args:
        name: which ``[samplers.<name>]``.
        config: the configuration, or the path of its file, with the sampler's settings as they
            were when the step was served.
        broker: instead of the configured one; the caller closes it.
        clock: instead of the system's.
        timeout_s: for reading the decision log, each of two times, and again for the seal logs.

    Returns:
        The newest decision for the step and the replacements in it, in their order.

    Raises:
        UnknownStep: the log has no decision for the step.
        ConfigError, UnknownSampler: the configuration is wrong, or has no such sampler.
        BrokerUnavailable: a log was not read within ``timeout_s``.
    """
    at = whole_number("step", step)
    loaded = configured(config)
    kafka = loaded.kafka
    log = Layout.of(kafka).sampler_log(name)
    addresses = seal_logs_of(name, loaded)
    with nullcontext(broker) if broker else KafkaBroker(kafka.bootstrap, kafka.client) as used:
        choices = _choices_of(at, _read(used, [log], Deadline(timeout_s, clock)))
        if not choices:
            raise UnknownStep(f"the log of sampler {name!r} has no batch for step {at}")
        served = choices[0].event
        assert isinstance(served, BatchServed), served
        cursors = [position_of(choice.event.cursor) for choice in choices]
        choosing = choosing_of(sampler_config(name, loaded), loaded.environments)
        seeded = replace(choosing, seed=served.seed)
        state = SamplerState(name, seeded, list(addresses.values()))
        between: list[tuple[PartitionAddress, ConfirmedEvent]] = []  # First choice and last.
        for sealed in _read(used, list(addresses), Deadline(timeout_s, clock)):
            address = addresses[sealed.where]
            if sealed.offset < cursors[0].get(address, 0):
                state.apply_groups(address, sealed.offset, sealed.event)
            elif sealed.offset < cursors[-1].get(address, 0):
                between.append((address, sealed))
        # Read a second time: a whole history of decisions is too much to keep.
        replayed: list[Replayed] = []
        with closing(_read(used, [log], Deadline(timeout_s, clock))) as decisions:
            waiting: ConfirmedEvent | None = None
            for choice, cursor in zip(choices, cursors, strict=True):
                for address, sealed in between:
                    if state.applied(address) <= sealed.offset < cursor.get(address, 0):
                        state.apply_groups(address, sealed.offset, sealed.event)
                while (decision := waiting or next(decisions)).offset < choice.offset:
                    state.apply(decision.offset, decision.timestamp_us, decision.event)
                    waiting = None
                waiting = decision
                replayed.append(_decide_again(choice.offset, choice.event, state))
    return replayed


def check_from_files(
    name: str,
    step: SupportsIndex,
    *,
    config: RollstreamConfig | Path | str,
    store: Blobs | None = None,
    trainer_epoch: SupportsIndex | None = None,
) -> FileCheck:
    """Reads a projected decision and its rows, without any log.

    Args:
        name: which ``[samplers.<name>]``.
        config: the configuration, or the path of its file.
        store: instead of the configured one.
        trainer_epoch: in which the step was decided; None: the newest that has a file of it.

    Raises:
        BlobMissing: the decision was not projected, or a file of it is gone.
        CorruptFile: a file is damaged.
        ConfigError, UnknownSampler: the configuration is wrong, or has no such sampler.
    """
    at = whole_number("step", step)
    loaded = configured(config)
    sampler_config(name, loaded)
    used = open_store(loaded.store.root) if store is None else store
    if trainer_epoch is None:
        trainer_epoch = _newest_epoch(used, name, at)
    path = batch_path(name, whole_number("trainer_epoch", trainer_epoch), at)
    decision: dict[str, Any] = json.loads(used.read(path))
    digests: list[bytes] = []
    differing: list[str] = []
    for group in decision["groups"]:
        if "path" not in group:
            raise BlobMissing(f"the decision of step {at} names no file of {group['group_id']}")
        rows = read_rows(used, group["path"], ranges=[(group["row_start"], group["rows"])])
        (digest,) = row_digests(rows, [0])
        digests.append(digest)
        if digest.hex() != group["digest"]:
            differing.append(group["group_id"])
    return FileCheck(bytes.fromhex(decision["digest"]), combined(digests), tuple(differing))


def _choices_of(step: int, decisions: Iterable[ConfirmedEvent]) -> list[_Chosen]:
    """The newest batch of a step and the replacements in it."""
    choices: list[_Chosen] = []
    for decision in decisions:
        event = decision.event
        if isinstance(event, BatchServed | Replaced) and event.step == step:
            if isinstance(event, BatchServed):
                choices.clear()
            choices.append(_Chosen(decision.offset, event))
    return choices


def _newest_epoch(store: Blobs, name: str, step: int) -> int:
    """The newest trainer epoch in which a decision for the step was projected."""
    path = PurePosixPath(batch_path(name, 0, step))
    folder = path.parents[1]
    epochs = [
        int(written.parent.name.partition("=")[2])
        for blob in store.list(f"{folder}/")
        if (written := PurePosixPath(blob.path)).name == path.name
    ]
    if not epochs:
        raise BlobMissing(
            f"there is no decision of sampler {name!r} for step {step} under {folder}/; either the "
            "step was not served, or it is not yet written: check store.root and the step, or read "
            "the logs with replay_step"
        )
    return max(epochs)


def _decide_again(offset: int, event: Choice, state: SamplerState) -> Replayed:
    command: NextBatch | Replace
    if isinstance(event, BatchServed):
        command = NextBatch(step=event.step, **json.loads(event.request))
    else:
        command = Replace(
            step=event.step,
            digest=state.batches[event.step].digest,
            slots=tuple(event.slots.tolist()),
            reason=event.reason,
            outcome="unreadable" if event.outcome == "unreadable" else "filtered",
        )
    now = Now(epoch=event.epoch, nonce=event.nonce, now_ts=event.now_ts)
    for again in command.decide(state, now):
        if isinstance(again, Choice):
            group_ids = tuple(group.group_id for group in again.groups)
            return Replayed(offset, event, group_ids, again.digest)
    return Replayed(offset, event, (), b"")


def _read(
    broker: Broker, logs: Sequence[TopicPartition], deadline: Deadline
) -> Generator[ConfirmedEvent, None, None]:
    with closing(Follower(broker, dict.fromkeys(logs, 0))) as follower:
        yield from follower.read_to_end(deadline)
