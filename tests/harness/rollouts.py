"""Rollouts for tests: fields, bytes and segments from a few overrides.

Every default is fixed, so two calls give equal rollouts; name a ``rollout_uid`` where identity
matters. ``members`` gives several that differ in nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollstream.schemas.codec import Segment, decode, encode_rollout
from rollstream.schemas.columns import array_fields, rare_fields

CREATED_TS = 1_700_000_000_000_000
_NO_EXTRAS: Mapping[str, Any] = {
    "actor_logprobs": None,
    "actor_logprob_sum": None,
    "actor_policy_version": "",
    "ref_logprobs": None,
    "token_rewards": None,
    "weight_steps": None,
    "token_arrays": [],
    "attachments": [],
    "messages": "",
}


def make_fields(**overrides: Any) -> dict[str, Any]:
    """All fields of the newest ``rollout`` schema, as they travel.

    Arrays may be given as any sequence (they are packed) or as packed bytes. Fields that travel in
    ``extras`` are given flat, like the rest: ``make_fields(ref_logprobs=[0.0, 0.0, 0.0])``.
    ``prompt_count`` and ``token_count`` follow the tokens unless they are given.
    """
    fields: dict[str, Any] = {
        "environment": "math",
        "example_id": "ex-1",
        "group_uid": "",
        "group_size": 0,
        "rollout_uid": "uid-0",
        "segment_idx": 0,
        "is_last_segment": True,
        "continuation_of": "",
        "prefix_hash": "",
        "lineage": "",
        "policy_version": "step-0",
        "policy_epoch": 0,
        "weight_step": 0,
        "replica_id": "replica-0",
        "worker_id": "worker-0",
        "created_ts": CREATED_TS,
        "reward": 1.0,
        "split": "train",
        "stop_reason": "stop",
        "prompt_tokens": [11, 12],
        "output_tokens": [21, 22, 23],
        "rewards": {},
        "metadata": "{}",
        "extras": None,
    }
    rare = {name: value for name, value in overrides.items() if name in rare_fields()}
    fields.update({name: value for name, value in overrides.items() if name not in rare})
    for name, dtype in array_fields().items():
        for where in (fields, rare):
            if where.get(name) is not None and not isinstance(where[name], bytes):
                where[name] = np.asarray(where[name], dtype).tobytes()
    token_count = len(fields["output_tokens"]) // 4
    fields.setdefault("prompt_count", len(fields["prompt_tokens"]) // 4)
    fields.setdefault("token_count", token_count)
    fields.setdefault("logprobs", np.full(token_count, -0.5, "<f4").tobytes())
    fields.setdefault("loss_mask", None)
    if rare:
        fields["extras"] = {**_NO_EXTRAS, **rare}
    return fields


def encode_segment(**overrides: Any) -> bytes:
    """The bytes that a producer would publish."""
    return encode_rollout(make_fields(**overrides))


def make_segment(**overrides: Any) -> Segment:
    """The same as a reader sees it."""
    segment = decode(encode_segment(**overrides))
    assert isinstance(segment, Segment)
    return segment


def members(count: int, **overrides: Any) -> list[Segment]:
    """``count`` segments with uids ``uid-0``, ``uid-1``, … and rewards 0, 1, 0, 1, …"""
    return [
        make_segment(**{"rollout_uid": f"uid-{i}", "reward": float(i % 2), **overrides})
        for i in range(count)
    ]


def token_array(name: str, values: Any) -> dict[str, Any]:
    """An element of ``token_arrays`` as it travels; ``values`` is [n, …], little-endian."""
    array = np.ascontiguousarray(values)
    shape = list(array.shape[1:])
    return {"name": name, "dtype": array.dtype.str, "shape": shape, "data": array.tobytes()}
