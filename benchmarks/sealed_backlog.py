"""Seals groups as a sealer does, files first, then the event, without producers before it: a
backlog of gigabytes is there within seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.workload import PROMPT_TOKENS
from rollstream.runtime.config.load import load_config
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.entropy import SystemEntropy
from rollstream.schemas.columns import Columns, Ragged, offsets_of
from rollstream.schemas.digest import row_digests
from rollstream.schemas.events import (
    Event,
    Flushed,
    SealedFile,
    SealedGroup,
    SealedGroupColumns,
    SealedSegments,
    TouchedOffsets,
)
from rollstream.schemas.fields import scalar_fields
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import FileGroup, Provenance, encode_rows, open_store
from rollstream.store.layout import GROUPS, rows_path
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.owned.fold import FoldCheckpoint
from rollstream.streams.owned.log import OwnedLog
from rollstream.streams.topics.layout import Layout

GROUP_SIZE = 8
TOKENS = 1024
FLUSH_GROUPS = 128
EXPERTS = (48, 8)
WAIT_S = 60.0
VERSION = "step-0"
_POOL = np.random.default_rng(0).integers(0, 150_000, 1 << 22).astype(np.int32)
_LOGPROBS = -np.random.default_rng(1).random(1 << 22, np.float32)
_EXPERTS = np.random.default_rng(2).integers(0, 128, 1 << 26).astype(np.uint8)


class SealedBacklog:
    """Owns the seal log of an environment of one partition.

    Args:
        compression: of the files. experts: whether rollouts have router arrays, 402 KB each.
    """

    def __init__(
        self, config: Path, environment: str, *, compression: str = "none", experts: bool = False
    ) -> None:
        settings = load_config(config)
        self._address = PartitionAddress(environment, 1, 0)
        self._compression, self._experts = compression, experts
        self._store = open_store(settings.store)
        self._broker = KafkaBroker(settings.kafka.bootstrap)
        self._log: OwnedLog[_NoFold] = OwnedLog(
            self._broker,
            Layout.of(settings.kafka).groups_log(self._address),
            owner="benchmark",
            make_fold=_NoFold,
            entropy=SystemEntropy(),
        )
        self._log.claim(Deadline(WAIT_S))

    def seal(self, first: int, groups: int) -> None:
        """The groups ``first`` and on, in files of 128; they are sealed when this returns."""
        while groups:
            count = min(groups, FLUSH_GROUPS)
            event = self._written(first, count)
            self._log.wait_confirmed(self._log.append(event), Deadline(WAIT_S))
            first, groups = first + count, groups - count

    def close(self) -> None:
        self._log.release()
        self._broker.close()

    def _written(self, first: int, count: int) -> Flushed:
        columns = self._columns(first, count)
        starts = list(range(0, columns.rows, GROUP_SIZE))
        digests = row_digests(columns, starts)
        rows = np.arange(columns.rows)
        data = encode_rows(
            columns,
            Provenance(
                [f"group-{first + row // GROUP_SIZE}" for row in range(columns.rows)],
                self._address,
                self._log.epoch,
                rows,
                np.zeros(columns.rows, np.int32),
            ),
            groups=[FileGroup(GROUP_SIZE, digest) for digest in digests],
            compression=self._compression,
        )
        path = rows_path(
            GROUPS, self._address.environment, VERSION, 0, self._log.epoch, f"f{first}"
        )
        self._store.create(path, data)
        scalars: Any = columns.scalars
        zeros = np.zeros(columns.rows, np.int32)
        return Flushed(
            epoch=self._log.epoch,
            nonce=self._log.nonce,
            now_ts=time.time_ns() // 1000,
            watermark=0,
            files=(
                SealedFile(path=path, size=data.size, rows=columns.rows, checksum=data.checksum()),
            ),
            groups=SealedGroupColumns.of(
                _group(first + number, start, digest)
                for number, (start, digest) in enumerate(zip(starts, digests, strict=True))
            ),
            segments=SealedSegments(
                offsets=rows,
                entries=zeros,
                uids=tuple(scalars["rollout_uid"]),
                segment_idxs=zeros,
                weight_steps=scalars["weight_step"],
                policy_epochs=zeros,
                prompt_counts=scalars["prompt_count"],
                token_counts=scalars["token_count"],
                rewards=scalars["reward"],
                created_ts=scalars["created_ts"],
                replicas=("replica-0",),
                replica_idxs=zeros,
                stop_reasons=("stop",),
                stop_reason_idxs=zeros,
            ),
            settled=(),
            touched=TouchedOffsets(offsets=rows, counts=np.ones(columns.rows, np.int32)),
            incomplete=(),
        )

    def _columns(self, first: int, count: int) -> Columns:
        rows = count * GROUP_SIZE
        texts = {"environment": self._address.environment, "replica_id": "replica-0"}
        texts |= {"policy_version": VERSION, "split": "train", "stop_reason": "stop"}
        scalars: dict[str, Any] = {}
        for field in scalar_fields():
            if field.dtype:
                default = np.nan if field.default is None else field.default
                scalars[field.name] = np.full(rows, default, field.dtype)
            else:
                scalars[field.name] = [texts.get(field.name, field.default)] * rows
        numbers = range(first * GROUP_SIZE, first * GROUP_SIZE + rows)
        of_groups = [str(number // GROUP_SIZE) for number in numbers]
        scalars["rollout_uid"] = [f"rollout-{number:024}" for number in numbers]
        scalars["group_uid"] = [f"group-{number}" for number in of_groups]
        scalars["example_id"] = [f"example-{number}" for number in of_groups]
        scalars["reward"] = np.arange(rows) % 2 / 1
        scalars["weight_step"][:] = 0
        scalars["prompt_count"][:] = PROMPT_TOKENS
        scalars["token_count"][:] = TOKENS
        prompts, outputs = (np.full(rows, n) for n in (PROMPT_TOKENS, TOKENS))
        at = first * 4_097 % (len(_POOL) // 2)
        arrays = {
            "prompt_tokens": Ragged(_POOL[at:][: prompts.sum()], offsets_of(prompts)),
            "output_tokens": Ragged(_POOL[at:][: outputs.sum()], offsets_of(outputs)),
            "logprobs": Ragged(_LOGPROBS[at:][: outputs.sum()], offsets_of(outputs)),
        }
        named = {}
        if self._experts:
            values = np.resize(_EXPERTS, (int(outputs.sum()), *EXPERTS))
            named["routed_experts"] = Ragged(values, offsets_of(outputs))
        return Columns(rows, scalars, arrays, named)


def seal_steadily(
    config: str, environment: str, first: int, per_s: float, pipe: Connection
) -> None:
    """A process that seals ``per_s`` groups a second, twice a second, until it is killed."""
    backlog = SealedBacklog(Path(config), environment)
    pipe.send("ready")
    each = round(per_s / 2)
    due = time.monotonic()
    while True:
        backlog.seal(first, each)
        first, due = first + each, due + 0.5
        time.sleep(max(0.0, due - time.monotonic()))


def _group(number: int, start: int, digest: bytes) -> SealedGroup:
    return SealedGroup(
        group_id=f"group-{number}",
        group_uid=f"group-{number}",
        example_id=f"example-{number}",
        lineage="",
        policy_version=VERSION,
        policy_epoch=0,
        weight_step=0,
        segment_idx=0,
        split="train",
        seal_reason="full",
        failed_members=0,
        file=0,
        row_start=start,
        rows=GROUP_SIZE,
        digest=digest,
    )


class _NoFold:
    """Remembers nothing: nobody asks this owner what it sealed."""

    def apply(self, offset: int, timestamp_us: int, event: Event) -> None:
        pass

    def checkpoint(self, claims: Sequence[int]) -> FoldCheckpoint:
        return FoldCheckpoint(claims[0], 0, {})

    def digest(self) -> bytes:
        return b""
