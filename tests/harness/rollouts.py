"""Rollouts for tests: entries, records and columns from a few overrides.

Every default is fixed, so two calls give equal rollouts; name a ``rollout_uid`` where identity
matters. ``members`` gives several that differ in nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rollstream.schemas.columns import Columns
from rollstream.schemas.fields import array_fields
from rollstream.schemas.ids import step_rollout_uid
from rollstream.schemas.ingest.encode import encode_entries
from rollstream.schemas.ingest.entry import Entry, EntryKind, Failure, NamedArray, Producer
from rollstream.schemas.ingest.gather import gather
from rollstream.schemas.ingest.record import IngestRecord, decode_record

CREATED_TS = 1_700_000_000_000_000
ENVIRONMENT = "math"
WORKER = "worker-0"


def make_fields(**overrides: Any) -> dict[str, Any]:
    """The fields of one segment, as an entry has them.

    Arrays may be given as any sequence (they are packed) or as packed bytes, ``token_arrays`` as a
    mapping to arrays. ``prompt_count`` and ``token_count`` follow the tokens unless they are given.
    """
    fields: dict[str, Any] = {
        "example_id": "ex-1",
        "group_uid": "",
        "group_size": 0,
        "rollout_uid": "uid-0",
        "metadata": "{}",
        "segment_idx": 0,
        "is_last_segment": True,
        "lineage": "",
        "policy_version": "step-0",
        "policy_epoch": 0,
        "weight_step": 0,
        "replica_id": "replica-0",
        "split": "train",
        "stop_reason": "stop",
        "old_policy_version": "",
        "created_ts": CREATED_TS,
        "reward": 1.0,
        "prompt_tokens": [11, 12],
        "output_tokens": [21, 22, 23],
        **overrides,
    }
    for name, dtype in array_fields().items():
        if fields.get(name) is not None and not isinstance(fields[name], bytes):
            fields[name] = np.asarray(fields[name], dtype).tobytes()
    token_count = len(fields["output_tokens"]) // 4
    fields.setdefault("prompt_count", len(fields["prompt_tokens"]) // 4)
    fields.setdefault("token_count", token_count)
    fields.setdefault("logprobs", np.full(token_count, -0.5, "<f4").tobytes())
    fields.setdefault("loss_mask", None)
    if "token_arrays" in fields:
        named = fields["token_arrays"].items()
        fields["token_arrays"] = {name: named_array(values) for name, values in named}
    return fields


def named_array(values: Any) -> NamedArray:
    """One segment's values of a named array; ``values`` is [n, …], or one already."""
    if isinstance(values, NamedArray):
        return values
    array = np.ascontiguousarray(values)
    return NamedArray(array.dtype.str, array.shape[1:], array.tobytes())


def make_entry(**overrides: Any) -> Entry:
    """A segment as a producer holds it (see ``make_fields``)."""
    return Entry.of(make_fields(**overrides))


def make_dispatched(**overrides: Any) -> Entry:
    """The entry that a group was dispatched."""
    return Entry.of(_control_fields({"rollout_uid": "", **overrides}), EntryKind.DISPATCHED)


def make_failed(*, count: int = 1, reason: str = "crashed", **overrides: Any) -> Entry:
    """The entry that members of a group failed."""
    return Entry.of(_control_fields(overrides), EntryKind.FAILED, Failure(count, reason))


def make_ended(uid: str, segments: int = 0, **overrides: Any) -> Entry:
    """The entry that a trajectory has ended, with so many segments; 0: those before it."""
    named = {"rollout_uid": uid, "segment_idx": segments, "group_size": 0}
    return Entry.of(_control_fields({**named, **overrides}), EntryKind.ENDED)


def make_step(
    prompt_uid: str, trajectory_uid: str, *, old: bool = False, **overrides: Any
) -> Entry:
    """The entry of a step; ``old``: as writers named it before there were digests."""
    named = step_uids(prompt_uid, trajectory_uid, old=old)
    fields = make_fields(**{"example_id": prompt_uid, **named, **overrides})
    return Entry.of(fields, EntryKind.STEP)


def step_uids(prompt_uid: str, trajectory_uid: str, *, old: bool = False) -> dict[str, str]:
    """How a step, or an end, names its prompt and its trajectory."""
    named = {"group_uid": prompt_uid, "rollout_uid": trajectory_uid}
    if not old:
        uid = step_rollout_uid(prompt_uid, trajectory_uid)
        named |= {"rollout_uid": uid, "trajectory_uid": trajectory_uid}
    return named


def make_alive(producer_id: str) -> Entry:
    """The entry that a producer lives."""
    return Entry.of(
        _control_fields({"rollout_uid": "", "example_id": producer_id, "group_uid": ""}),
        EntryKind.ALIVE,
    )


def _control_fields(overrides: Mapping[str, Any]) -> dict[str, Any]:
    nothing = {"prompt_tokens": b"", "output_tokens": b"", "logprobs": None, "reward": None}
    group = {"group_uid": "group-1", "group_size": 2, "policy_version": "", "weight_step": -1}
    return make_fields(**{**nothing, **group, **overrides})


def encode_record(
    entries: Sequence[Entry],
    *,
    environment: str = ENVIRONMENT,
    worker_id: str = WORKER,
    partitions: int = 1,
    producer: Producer | None = None,
) -> bytes:
    """The bytes that a producer would append."""
    return encode_entries(
        entries,
        environment=environment,
        worker_id=worker_id,
        partitions=partitions,
        producer=producer,
    )


def make_record(entries: Sequence[Entry], **of_record: Any) -> IngestRecord:
    """The same as a reader sees it."""
    return decode_record(encode_record(entries, **of_record))


def encode_segment(**overrides: Any) -> bytes:
    """The bytes of a record of one segment."""
    return encode_record([make_entry(**overrides)])


def members(count: int, **overrides: Any) -> list[Entry]:
    """``count`` segments with uids ``uid-0``, ``uid-1``, … and rewards 0, 1, 0, 1, …"""
    return [
        make_entry(**{"rollout_uid": f"uid-{i}", "reward": float(i % 2), **overrides})
        for i in range(count)
    ]


def make_columns(entries: Sequence[Entry], **of_record: Any) -> Columns:
    """Segments as columns."""
    return gather([make_record(entries, **of_record)] * len(entries), range(len(entries)))
