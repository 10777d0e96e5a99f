"""Sealed groups for the sampler's tests, written as a sealer would: files first, then the event.

``flush_of`` makes one ``Flushed`` event (and, given blobs, its file). ``GroupWriter`` owns a
partition of a seal log and appends such events.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from harness.in_flight import report
from harness.retiring import retired
from harness.rollouts import CREATED_TS, make_columns, make_entry
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.entropy import SystemEntropy
from rollstream.schemas.codec import encode
from rollstream.schemas.columns import Columns
from rollstream.schemas.digest import row_digests
from rollstream.schemas.events import (
    Event,
    Flushed,
    ProducerInFlight,
    Retired,
    SealedFile,
    SealedGroup,
    SealedGroupColumns,
    SealedSegments,
    TouchedOffsets,
)
from rollstream.schemas.ids import MIXED_POLICY, GroupKey, PartitionAddress, group_id
from rollstream.schemas.ingest.entry import Entry
from rollstream.store import Blobs, FileGroup, Provenance, encode_rows
from rollstream.store.layout import GROUPS, rows_path
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.owned.fold import FoldCheckpoint
from rollstream.streams.owned.log import OwnedLog

E = TypeVar("E", Flushed, Retired)
WAIT_S = 30.0
EVERY_COLUMN = (
    "routed_experts",
    "old_logprobs",
    "ref_logprobs",
    "token_rewards",
    "token_weight_steps",
    "metadata",
    "group_uids",
    "worker_ids",
    "created_ts",
)
"""What ``next_batch`` may be asked for of groups with ``every_extra``."""


@dataclass(frozen=True, kw_only=True)
class GroupSpec:
    """A group to be made.

    Attributes:
        rewards: one a member; None: awaited.
        weight_steps: one a member where they differ; the group is then ``mixed``.
        loss_mask: of every member; None: none is published.
        extras: further fields, or others, one mapping a member; of members beyond these there are
            none.
        failed_members: how many never came.
    """

    example_id: str = "ex-1"
    rewards: tuple[float | None, ...] = (0.0, 1.0)
    weight_step: int = 0
    weight_steps: tuple[int, ...] | None = None
    policy_epoch: int = 0
    lineage: str = ""
    split: str = "train"
    prompt: int = 2
    output: int = 3
    loss_mask: tuple[bool, ...] | None = None
    extras: Sequence[Mapping[str, Any]] = ()
    stop_reason: str = "stop"
    failed_members: int = 0


def routed_experts(output: int = 3, top_k: int = 2) -> dict[str, Any]:
    """The token array ``routed_experts`` uint8 [output, top_k]: 0, 1, 2, …"""
    values = (np.arange(output * top_k) % 251).astype("u1").reshape(output, top_k)
    return {"token_arrays": {"routed_experts": values}}


def every_extra(output: int = 3) -> dict[str, Any]:
    """Fields of which a batch with every column is made."""
    rising = np.arange(output)
    return {
        **routed_experts(output),
        "old_logprobs": -rising / 2,
        "ref_logprobs": -rising / 4,
        "token_rewards": rising / 8,
        "weight_steps": rising // 2,
        "metadata": '{"temperature": 0.8}',
    }


def group_entries(spec: GroupSpec, environment: str, name: str) -> list[Entry]:
    """The members; tokens are a function of environment, name and index."""
    entries = []
    for index, reward in enumerate(spec.rewards):
        uid = f"{name}-{index}"
        first = int.from_bytes(hashlib.blake2b(f"{environment}/{uid}".encode()).digest()[:3], "big")
        step = spec.weight_step if spec.weight_steps is None else spec.weight_steps[index]
        tokens = np.arange(first, first + spec.prompt + spec.output, dtype="<i4")
        fields: dict[str, Any] = {
            "example_id": spec.example_id,
            "rollout_uid": uid,
            "group_uid": name,
            "lineage": spec.lineage,
            "policy_version": f"step-{step}",
            "policy_epoch": spec.policy_epoch,
            "weight_step": step,
            "reward": reward,
            "split": spec.split,
            "stop_reason": spec.stop_reason,
            "prompt_tokens": tokens[: spec.prompt],
            "output_tokens": tokens[spec.prompt :],
            "logprobs": -np.arange(1, spec.output + 1, dtype="<f4") / 8,
            "loss_mask": spec.loss_mask,
            "rewards": {} if reward is None else {"format": reward / 2},
            **(spec.extras[index] if index < len(spec.extras) else {}),
        }
        entries.append(make_entry(**fields))
    return entries


def group_columns(specs: Sequence[GroupSpec], environment: str, name: str) -> Columns:
    """The members of all these groups, one after the other, as the file of ``flush_of`` has
    them."""
    groups = [group_entries(s, environment, f"{name}-g{i}") for i, s in enumerate(specs)]
    return make_columns([entry for group in groups for entry in group], environment=environment)


def flush_of(
    specs: Sequence[GroupSpec],
    *,
    name: str,
    environment: str = "math",
    partition: int = 0,
    blobs: Blobs | None = None,
    now_ts: int = CREATED_TS,
    watermark: int = 0,
) -> Flushed:
    """One event over all ``specs``, in one file; ``name`` sets its uids apart from others'. Each
    segment is the only entry of its record.

    ``epoch`` and ``nonce`` belong to no owner: whoever appends it puts in their own.
    """
    groups = [group_entries(s, environment, f"{name}-g{i}") for i, s in enumerate(specs)]
    columns = group_columns(specs, environment, name)
    starts = np.cumsum([0, *(len(group) for group in groups)]).tolist()
    digests = row_digests(columns, starts[:-1])
    ids = [_group_id(group, environment) for group in groups]
    versions = [_version(group) for group in groups]
    stored = [FileGroup(len(group), digest) for group, digest in zip(groups, digests, strict=True)]
    file = _write_file(columns, stored, ids, versions, name, environment, partition, blobs)
    sealed = (
        SealedGroup(
            group_id=ids[i],
            group_uid=group[0].fields["group_uid"],
            example_id=spec.example_id,
            lineage=spec.lineage,
            policy_version=versions[i],
            policy_epoch=spec.policy_epoch,
            weight_step=min(entry.fields["weight_step"] for entry in group),
            segment_idx=0,
            split=spec.split,
            seal_reason="full",
            failed_members=spec.failed_members,
            file=0,
            row_start=starts[i],
            rows=len(group),
            digest=digests[i],
        )
        for i, (spec, group) in enumerate(zip(specs, groups, strict=True))
    )
    return Flushed(
        epoch=-1,
        nonce="",
        now_ts=now_ts,
        watermark=watermark,
        files=(file,),
        groups=SealedGroupColumns.of(sealed),
        segments=sealed_segments(columns),
        settled=(),
        touched=every_offset(columns),
        incomplete=(),
    )


class GroupWriter:
    """Owns one partition of a seal log."""

    def __init__(
        self,
        broker: Broker,
        where: TopicPartition,
        blobs: Blobs,
        *,
        environment: str,
    ) -> None:
        self._broker = broker
        self._where = where
        self._blobs = blobs
        self._environment = environment
        self._count = 0
        self._log: OwnedLog[_NoFold] = OwnedLog(
            broker,
            where,
            owner="test sealer",
            make_fold=_NoFold,
            entropy=SystemEntropy(),
        )
        self._log.claim(Deadline(WAIT_S))

    def flush(self, *specs: GroupSpec) -> Flushed:
        """The groups are sealed, durably, when this returns."""
        self._count += 1
        event = flush_of(
            specs,
            name=f"{self._environment}-{self._where.partition}-{self._log.epoch}-{self._count}",
            environment=self._environment,
            partition=self._where.partition,
            blobs=self._blobs,
            now_ts=CREATED_TS + self._count,
        )
        return self._append(event)

    def report(self, **begun: tuple[int, int, int]) -> None:
        """Reports producers, by id: how many groups each has begun, has open, and waits to begin;
        they said so just now."""
        now_us = SystemClock().now_us()
        producers = (ProducerInFlight(name, *figures, now_us) for name, figures in begun.items())
        sealed = self._log.next_offset - 1
        event = report(*producers, epoch=self._log.epoch, seal_offset=sealed, now_ts=now_us)
        topic = self._where.topic.replace(".groups.", ".reports.")
        writer = self._broker.writer(linger_ms=0.0)
        try:
            writer.append(topic, encode(event), partition=self._where.partition)
            assert writer.flush(WAIT_S) == 0
        finally:
            writer.abandon()

    def retire(self, offset: int, flushed: Flushed) -> Retired:
        """The files of the flush at ``offset`` are gone."""
        return self._append(retired(0, "", [(offset, file.path) for file in flushed.files]))

    def _append(self, event: E) -> E:
        event = replace(event, epoch=self._log.epoch, nonce=self._log.nonce)
        self._log.wait_confirmed(self._log.append(event), Deadline(WAIT_S))
        return event

    def close(self) -> None:
        self._log.release()


class _NoFold:
    """A sealer's fold that remembers nothing: these tests read the log only."""

    def apply(self, offset: int, timestamp_us: int, event: Event) -> None:
        pass

    def checkpoint(self, claims: Sequence[int]) -> FoldCheckpoint:
        return FoldCheckpoint(claims[0], 0, {})

    def digest(self) -> bytes:
        return b""


def _group_id(group: list[Entry], environment: str) -> str:
    fields = group[0].fields
    key = GroupKey(
        environment, fields["example_id"], 0, fields["policy_version"], fields["group_uid"]
    )
    return group_id(key, [entry.fields["rollout_uid"] for entry in group])


def _version(group: list[Entry]) -> str:
    versions = {entry.fields["policy_version"] for entry in group}
    return versions.pop() if len(versions) == 1 else MIXED_POLICY


def _write_file(
    columns: Columns,
    groups: Sequence[FileGroup],
    ids: list[str],
    versions: list[str],
    name: str,
    environment: str,
    partition: int,
    blobs: Blobs | None,
) -> SealedFile:
    path = rows_path(GROUPS, environment, versions[0], 0, 0, name)
    if blobs is None:
        return SealedFile(path=path, size=0, rows=columns.rows, checksum="")
    counts = [group.rows for group in groups]
    provenance = Provenance(
        group_ids=np.repeat(ids, counts).tolist(),
        address=PartitionAddress(environment, 1, partition),
        epoch=0,
        offsets=np.arange(columns.rows, dtype=np.int64),
        entries=np.zeros(columns.rows, np.int32),
    )
    data = encode_rows(columns, provenance, groups=groups)
    blobs.create(path, data)
    return SealedFile(path=path, size=data.size, rows=columns.rows, checksum=data.checksum())


def every_offset(columns: Columns) -> TouchedOffsets:
    """Of records of one entry each, from offset 0 on."""
    return TouchedOffsets(
        offsets=np.arange(columns.rows, dtype=np.int64), counts=np.ones(columns.rows, np.int32)
    )


def sealed_segments(columns: Columns) -> SealedSegments:
    """What an event says of these rows, the only entries of records from offset 0 on."""
    scalars: Mapping[str, Any] = columns.scalars
    replicas, stops = (sorted(set(scalars[name])) for name in ("replica_id", "stop_reason"))
    return SealedSegments(
        offsets=np.arange(columns.rows, dtype=np.int64),
        entries=np.zeros(columns.rows, np.int32),
        uids=tuple(scalars["rollout_uid"]),
        segment_idxs=scalars["segment_idx"],
        weight_steps=scalars["weight_step"],
        policy_epochs=scalars["policy_epoch"],
        prompt_counts=scalars["prompt_count"],
        token_counts=scalars["token_count"],
        rewards=scalars["reward"],
        created_ts=scalars["created_ts"],
        replicas=tuple(replicas),
        replica_idxs=np.array([replicas.index(r) for r in scalars["replica_id"]], np.int32),
        stop_reasons=tuple(stops),
        stop_reason_idxs=np.array([stops.index(r) for r in scalars["stop_reason"]], np.int32),
    )
