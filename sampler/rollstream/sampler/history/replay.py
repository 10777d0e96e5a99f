"""Decides served batches again from the logs, or checks them against the files alone."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass, fields
from functools import partial
from itertools import chain, groupby, takewhile
from pathlib import Path
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

import rollstream
from rollstream.folds.batches.served import CARRIED, LOST, SHAPING, ServedBatch, is_shaped
from rollstream.folds.group.scored import Given
from rollstream.folds.state import SamplerState
from rollstream.runtime.clock import Clock
from rollstream.runtime.config.load import configured
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler.arguments import whole_number
from rollstream.sampler.decide.batches.next_batch import NextBatch, Replace
from rollstream.sampler.decide.batches.shaped import NextShapedBatch
from rollstream.sampler.decide.choosing.choose import ALGORITHM
from rollstream.sampler.decide.command import Now
from rollstream.sampler.errors import (
    DecidedByNewer,
    DecidedByOlder,
    InvalidRequest,
    UnknownSampler,
)
from rollstream.sampler.history.batch_files import reading_batch
from rollstream.sampler.history.decisions import (
    asked_step,
    connected,
    no_batch,
    read_decisions,
    read_logs,
)
from rollstream.schemas.choosing import Choosing, UnknownSettings
from rollstream.schemas.digest import combined, row_digests
from rollstream.schemas.events import (
    BatchServed,
    Claimed,
    Flushed,
    LogPosition,
    Replaced,
    Scored,
    ServedScore,
)
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.scoring import digest_part
from rollstream.store.blobs import Blobs
from rollstream.store.bounded import open_bounded
from rollstream.store.dataset import read_rows
from rollstream.store.errors import BlobMissing
from rollstream.store.layout import batch_in, batch_path, batches_prefix
from rollstream.store.retired import NamedFile, retired_of
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.folds.refs import position_of
from rollstream.streams.owned.follow import ConfirmedEvent
from rollstream.streams.topics.layout import Layout

TIMEOUT_S = 600.0  # A long log takes a while.
NO_GROUP_COMES = 1 << 62  # A log time.
Choice = BatchServed | Replaced


@dataclass(frozen=True, slots=True, repr=False)
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

    def __repr__(self) -> str:
        found = "the same" if self.same else "differs"
        return (
            f"Replayed(step {self.event.step}, batch {self.event.batch_id!r} at offset "
            f"{self.offset}, {len(self.event.groups):,} groups: {found})"
        )


class _Chosen(NamedTuple):
    """A recorded choice, its offset in the decision log, and the version that wrote it."""

    offset: int
    event: Choice
    software: str


@dataclass(frozen=True, slots=True)
class FileCheck:
    """The digest of a recorded batch, and the digest of the rows in the files.

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
    trainer_epoch: SupportsIndex | None = None,
    broker: Broker | None = None,
    clock: Clock | None = None,
    timeout_s: float = TIMEOUT_S,
) -> list[Replayed]:
    """Decides a served step again, from the logs alone, and returns both decisions.

    It uses the recorded settings, seed and request, and the state up to the recorded cursor. So the
    configuration may have changed since.

    Args:
        name: of the sampler.
        step: to decide again.
        config: the configuration, or the path of its file: where the logs are.
        trainer_epoch: in which the step was decided; None: the newest decision for it.
        broker: instead of the configured one; the caller closes it.
        clock: instead of the system's.
        timeout_s: for each of three reads of logs.

    Returns:
        The decision for the step and the replacements in it, in their order.

    Raises:
        UnknownStep: the log has no decision for the step.
        DecidedByNewer: a newer version decided by rules that this one does not know.
        DecidedByOlder: an older version decided by rules that this one no longer has.
        UnknownSampler: there is no decision log of that name.
        ConfigError: the configuration is wrong.
        BrokerUnavailable: a log was not read within ``timeout_s``.
        UnreadableLog: the logs do not have all that was decided from any more.
    """
    at, epoch = asked_step(step, trainer_epoch)
    loaded = configured(config)
    layout = Layout.of(loaded.kafka)
    with connected(loaded.kafka, broker) as used:
        decisions = partial(read_decisions, used, layout, name)
        choices = _choices_of(at, epoch, decisions(Deadline(timeout_s, clock)))
        if not choices:
            raise no_batch(name, at, epoch)
        replayed: list[Replayed] = []
        # Others may have decided about the replacements, by other settings and environments.
        for (choosing, logs), run in groupby(choices, key=partial(_chosen_by, name)):
            addresses = {
                layout._replace(generation=log.generation).groups_log(log): log for log in logs
            }
            state = SamplerState(name, choosing, list(logs))
            made = list(run)
            # Read a second time: a whole history of decisions is too much to keep.
            with closing(decisions(Deadline(timeout_s, clock))) as again:
                decided = _apply_before(made, state, again)
            last = _positions(made[-1])
            to = {where: last[log].groups_next_offset for where, log in addresses.items()}
            sealed = read_logs(used, addresses, Deadline(timeout_s, clock), needed=to)
            scores = {
                layout._replace(generation=at.generation).scores_log(log): log
                for log, at in last.items()
                if at.scores_next_offset
            }
            to = {where: last[log].scores_next_offset for where, log in scores.items()}
            by = Deadline(timeout_s, clock)
            scored = read_logs(used, scores, by, scores=scores, needed=to) if scores else ()
            every = {**addresses, **scores}
            replayed += _decided_again(made, state, every, sealed, scored, decided)
    return replayed


def _apply_before(
    choices: Sequence[_Chosen], state: SamplerState, decisions: Iterable[ConfirmedEvent]
) -> list[ConfirmedEvent]:
    """Applies what was decided before the first choice, before any group: the state then holds no
    more groups than at that choice. Returns what was decided from there to the last one."""
    first, last = choices[0].offset, choices[-1].offset
    decided = []
    for one in takewhile(lambda one: one.offset < last, decisions):
        if one.offset < first:
            state.apply(one.offset, one.timestamp_us, one.event)
        else:
            decided.append(one)
    return decided


def _decided_again(
    choices: Sequence[_Chosen],
    state: SamplerState,
    addresses: Mapping[TopicPartition, PartitionAddress],
    sealed: Iterable[ConfirmedEvent],
    scored: Iterable[ConfirmedEvent],
    decided: Sequence[ConfirmedEvent],
) -> Iterator[Replayed]:
    """Each choice, from the state of what had been sealed, scored and decided before it.

    Args:
        state: of what was decided before the first choice.
        decided: what was, from there on.
    """
    cursors = list(map(_positions, choices))
    # What the first choice had not seen, by the first choice that had.
    later: list[list[tuple[PartitionAddress, ConfirmedEvent]]] = [[] for _ in choices]
    for one in chain(sealed, _after_groups(state, later, scored)):
        address = addresses[one.where]
        seen_by = (at for at, cursor in enumerate(cursors) if _is_before(one, cursor[address]))
        first = next(seen_by, None)
        if first == 0:
            _apply(state, address, one)
        elif first is not None:
            later[first].append((address, one))
    decisions = deque(decided)
    for choice, seen in zip(choices, later, strict=True):
        for address, one in seen:
            _apply(state, address, one)
        while decisions and decisions[0].offset < choice.offset:
            decision = decisions.popleft()
            state.apply(decision.offset, decision.timestamp_us, decision.event)
        yield _decide_again(choice.offset, choice.event, state)


def _after_groups(
    state: SamplerState,
    later: Sequence[Sequence[tuple[PartitionAddress, ConfirmedEvent]]],
    scored: Iterable[ConfirmedEvent],
) -> Iterator[ConfirmedEvent]:
    """The scores, once all groups but those of ``later`` were applied: they wait for those."""
    every = (one for of_choice in later for _, one in of_choice)
    flushed = [one.timestamp_us for one in every if isinstance(one.event, Flushed)]
    for environment in state.choosing.names():
        state.late.seal_logs_read(environment, min(flushed, default=NO_GROUP_COMES))
    yield from scored


def _positions(choice: _Chosen) -> dict[PartitionAddress, LogPosition]:
    """How far the logs had been applied."""
    return {PartitionAddress(*astuple(at)[:3]): at for at in choice.event.cursor}


def _is_before(one: ConfirmedEvent, at: LogPosition) -> bool:
    scored = isinstance(one.event, Scored)
    return one.offset < (at.scores_next_offset if scored else at.groups_next_offset)


def _apply(state: SamplerState, address: PartitionAddress, one: ConfirmedEvent) -> None:
    if isinstance(one.event, Scored):
        state.apply_scores(address, one.offset, Given(one.event, one.timestamp_us))
    else:
        state.apply_groups(address, one.offset, one.event, one.timestamp_us)


def check_from_files(
    name: str,
    step: SupportsIndex,
    *,
    config: RollstreamConfig | Path | str | None = None,
    store: Blobs | None = None,
    trainer_epoch: SupportsIndex | None = None,
) -> FileCheck:
    """Compares the recorded digest of a step with the rows in the files. Needs the root alone.

    Args:
        name: of the sampler; it need not be configured any more.
        step: to check.
        config: the configuration, or the path of its file, whose ``store.root`` is read.
        store: instead of the configured one.
        trainer_epoch: in which the step was decided; None: the newest that has a file of it.

    Raises:
        UnknownSampler: the root has no decision of that sampler.
        BlobMissing: the decision has no file, or a row file is gone; the message says if it was
            retired.
        CorruptFile: a file is damaged.
        ConfigError: the configuration is wrong.
        InvalidRequest: neither a configuration nor a store is given.
    """
    at = whole_number("step", step)
    if store is None:
        if config is None:
            raise InvalidRequest("config is None; give a configuration, or store=")
        store = open_bounded(configured(config).store)
    if trainer_epoch is None:
        trainer_epoch = newest_epoch(store, name, at)
    path = batch_path(name, whole_number("trainer_epoch", trainer_epoch), at)
    data = store.read(path)
    digests: list[bytes] = []
    differing: list[str] = []
    with reading_batch(path):
        decision: dict[str, Any] = json.loads(data)
        for group in [*decision["groups"], *decision.get("carried", ())]:
            digest, others = _digests_of(store, at, group)
            digests += [CARRIED, digest] if "wanted" in group else [digest]
            digests += others
            if digest.hex() != group["digest"]:
                differing.append(group["group_id"])
        recorded = bytes.fromhex(decision["digest"])
    return FileCheck(recorded, combined(digests), tuple(differing))


def _digests_of(store: Blobs, step: int, group: Mapping[str, Any]) -> tuple[bytes, list[bytes]]:
    """The digest of a group's rows as they are now, and what else the batch's digest is over."""
    if "path" not in group:
        raise BlobMissing(f"the decision of step {step} names no file of {group['group_id']}")
    try:
        rows = read_rows(store, group["path"], ranges=[(group["row_start"], group["rows"])])
    except BlobMissing as error:
        address = PartitionAddress(group["environment"], group["generation"], group["partition"])
        file = NamedFile(group["offset"], group["path"])
        raise if_retired(error, store, address, file) from error
    (digest,) = row_digests(rows, [0])
    others = []
    if "row_mask" in group:
        others.append(np.array(group["row_mask"], np.bool_).tobytes())
    if "scores" in group:
        others.append(digest_part([ServedScore(**one) for one in group["scores"]]))
    if "wanted" in group:
        others.append(np.array(group["wanted"], np.bool_).tobytes())
    return digest, others


def if_retired(
    error: BlobMissing, store: Blobs, address: PartitionAddress, file: NamedFile
) -> BlobMissing:
    """The error, where the file was retired as one that says so."""
    if not retired_of(store, address).has(file):
        return error
    return BlobMissing(
        f"{file.path} was retired and deleted: every sampler was done with it, and it was over "
        "a limit; replay_step recomputes what was chosen"
    )


def _choices_of(
    step: int, trainer_epoch: int | None, decisions: Iterable[ConfirmedEvent]
) -> list[_Chosen]:
    """The newest batch of a step, of that trainer epoch, and the replacements in it."""
    choices: list[_Chosen] = []
    wanted, software = False, ""
    for decision in decisions:
        event = decision.event
        if isinstance(event, Claimed):
            software = event.software
        if isinstance(event, BatchServed) and event.step == step:
            wanted = trainer_epoch in (None, event.trainer_epoch)
            if wanted:
                choices.clear()
        if wanted and isinstance(event, BatchServed | Replaced) and event.step == step:
            choices.append(_Chosen(decision.offset, event, software))
    return choices


def _chosen_by(name: str, choice: _Chosen) -> tuple[Choosing, tuple[PartitionAddress, ...]]:
    """The settings that a choice was made by, and the seal logs."""
    event = choice.event
    if event.algorithm < ALGORITHM:
        raise DecidedByOlder(
            f"The choice at offset {choice.offset} of sampler {name!r} was made with algorithm "
            f"{event.algorithm} by rollstream {choice.software or 'of an older version'}. This is "
            f"{rollstream.__version__}, which chooses by algorithm {ALGORITHM} alone. Replay it "
            "with that version. `rollstream lineage` shows what was chosen, and `--from-files` "
            "(check_from_files) compares its rows with any version"
        )
    unknown = f"algorithm {event.algorithm}" if event.algorithm > ALGORITHM else ""
    if isinstance(event, BatchServed) and (names := _unknown_arguments(event.request)):
        unknown = f"arguments {', '.join(names)}"
    try:
        choosing = Choosing.of_record(event.choosing)
    except UnknownSettings as error:
        unknown = f"settings {', '.join(error.names)}"
    if unknown:
        raise DecidedByNewer(
            f"the choice at offset {choice.offset} of sampler {name!r} was made with {unknown} by "
            f"rollstream {choice.software or 'of a newer version'}, and this is "
            f"{rollstream.__version__}, which does not know that: replay it with that version or a "
            "later one. `--from-files` (check_from_files) compares its rows with any version"
        )
    return choosing, tuple(position_of(event.cursor))


def _unknown_arguments(request: str) -> list[str]:
    """What a batch was asked for by, and no command of this version has."""
    known = {SHAPING, LOST} if is_shaped(request) else set()
    known |= {one.name for one in fields(NextShapedBatch if known else NextBatch)}
    return sorted(json.loads(request).keys() - known)


def newest_epoch(store: Blobs, name: str, step: int) -> int:
    """The newest trainer epoch in which a decision for the step was projected.

    Raises:
        UnknownSampler: the root has no decision of that sampler. BlobMissing: none for the step.
    """
    folder = batches_prefix(name)
    batches = [one for blob in store.list(folder) if (one := batch_in(blob.path)) is not None]
    if not batches:
        raise UnknownSampler(
            f"there is no decision of a sampler {name!r} under {folder}; correct the name, or the "
            "root: it is store.root of the trainer's configuration"
        )
    epochs = [epoch for epoch, of in batches if of == step]
    if not epochs:
        raise BlobMissing(
            f"there is no decision of sampler {name!r} for step {step} under {folder}. The step "
            "was not served, it is not yet written, or its groups were retired. Check store.root "
            "and the step, or read the logs with replay_step"
        )
    return max(epochs)


def _decide_again(offset: int, event: Choice, state: SamplerState) -> Replayed:
    command: NextBatch | NextShapedBatch | Replace
    if isinstance(event, BatchServed) and (served := ServedBatch.of(event, offset)).is_shaped:
        carried = [state.sealed(ref) for ref in served.carried_refs]
        command = NextShapedBatch.of_record(served, carried)
    elif isinstance(event, BatchServed):
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
