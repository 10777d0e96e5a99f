"""Examples of every event, made from the types of its fields; and what makes two events the same.

New golden bytes, for a schema that has none: ``PYTHONPATH=tests python -m harness.events``. Files
that exist are never written again: they are what was shipped.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
from hypothesis import strategies as st

from harness.rollouts import (
    encode_record,
    make_alive,
    make_dispatched,
    make_entry,
    make_failed,
    make_step,
)
from rollstream.schemas import wire_schemas
from rollstream.schemas.codec import encode, event_kinds
from rollstream.schemas.ingest.entry import Entry, Producer

GOLDEN = Path(__file__).parent.parent / "golden"
KINDS = event_kinds()
INT_MAX = 2**31 - 1
_SCALARS: Mapping[Any, st.SearchStrategy[Any]] = {
    str: st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    int: st.integers(1, INT_MAX),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    bytes: st.binary(max_size=6),
}
ROLLOUT: Mapping[str, Any] = {
    "group_uid": "group-1",
    "group_size": 8,
    "segment_idx": 1,
    "continuation_of": "uid-0",
    "prefix_hash": "0" * 32,
    "lineage": "main",
    "policy_epoch": 2,
    "weight_step": 120,
    "stop_reason": "length",
    "loss_mask": [True, False, True],
    "rewards": {"format": 0.5},
    "metadata": '{"temperature":0.8}',
    "old_logprobs": [-0.25, -0.5, -0.75],
    "old_logprob_sum": -1.5,
    "old_policy_version": "step-121",
    "ref_logprobs": [-1.0, -2.0, -3.0],
    "token_rewards": [0.0, 0.0, 1.0],
    "weight_steps": [120, 120, 121],
    "token_arrays": {"routed_experts": np.arange(12, dtype=np.uint8).reshape(3, 2, 2)},
    "attachments": {"image": b"\x89PNG"},
    "messages": '[{"role":"user","content":"2+2?"}]',
}


def example(kind: type[Any]) -> Any:
    """An event whose fields all differ, and never change."""
    return _example(kind, "")


def golden_entries() -> list[Entry]:
    """Entries of every kind; the first is a segment that has everything."""
    return [
        make_entry(**ROLLOUT),
        make_dispatched(group_uid="group-2"),
        make_entry(rollout_uid="uid-é", reward=None, is_last_segment=False),
        make_failed(group_uid="group-2", rollout_uid="uid-2", count=3, reason="crashed"),
        make_entry(rollout_uid="uid-3", logprobs=None, logprob_sum=-1.5, rewards={"length": -2.0}),
        make_alive("producer-1"),
        make_step("prompt-1", "trajectory-é"),
    ]


def golden_record() -> bytes:
    """The record of these entries."""
    producer = Producer("producer-1", begun=7, waiting=2)
    return encode_record(golden_entries(), partitions=4, producer=producer)


def events(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Any event of that kind."""
    return st.builds(kind, **{name: _values(hint) for name, hint in get_type_hints(kind).items()})


def same(one: Any, other: Any) -> bool:
    """Equal, arrays bit for bit and with the same dtype."""
    if is_record(type(one)):
        return type(one) is type(other) and all(
            same(getattr(one, name), getattr(other, name)) for name in get_type_hints(type(one))
        )
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.tobytes() == other.tobytes())
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def is_record(hint: Any) -> bool:
    """Whether it is a class with named fields: a dataclass or a named tuple."""
    return isinstance(hint, type) and (dataclasses.is_dataclass(hint) or hasattr(hint, "_fields"))


def _example(hint: Any, name: str) -> Any:
    if hasattr(hint, "Row"):
        return hint.of(_example(tuple[hint.Row, ...], name))
    if is_record(hint):
        return hint(**{field: _example(of, field) for field, of in get_type_hints(hint).items()})
    number = sum(name.encode()) % 100 + 1
    plain = {str: f"{name}-é", int: number, float: number / 8, bool: True, bytes: name.encode()}
    if hint in plain:
        return plain[hint]
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _example(args[0], name)
    if origin is tuple:
        return (_example(args[0], name), _example(args[0], f"{name}s"))
    if origin is np.ndarray:
        return np.array([0, 1, number]).astype(_dtype(hint))
    assert origin is Mapping, hint
    return {f"{name}-key": _example(args[1], name)}


def _values(hint: Any) -> st.SearchStrategy[Any]:
    if hint in _SCALARS:
        return _SCALARS[hint]
    if hasattr(hint, "Row"):
        return st.lists(events(hint.Row), max_size=3).map(hint.of)
    if is_record(hint):
        return events(hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return st.none() | _values(args[0])
    if origin is tuple:
        return st.lists(_values(args[0]), max_size=3).map(tuple)
    if origin is np.ndarray:
        dtype = _dtype(hint)
        numbers = st.lists(st.integers(0, 100), max_size=4)
        return numbers.map(lambda values: np.array(values, dtype))
    assert origin is Mapping, hint
    return st.dictionaries(_values(str), _values(args[1]), max_size=3)


def _dtype(hint: Any) -> np.dtype[Any]:
    """``NDArray[np.int64]`` to int64."""
    dtype: np.dtype[Any] = np.dtype(get_args(get_args(hint)[1])[0])
    return dtype


def golden_file(schema: wire_schemas.WireSchema) -> Path:
    """Where the bytes of that version lie."""
    return GOLDEN / f"{schema.name}.v{schema.version}.bin"


def kind_of(schema: wire_schemas.WireSchema) -> type[Any]:
    """The dataclass of a schema's events."""
    return next(kind for kind in KINDS if kind.__name__ == schema.source["name"])


def write_missing() -> list[Path]:
    """Writes golden bytes for the newest version of every schema, where it has none; which ones.
    Those of older versions were written when these were the newest."""
    written = []
    for name in {schema.name for schema in wire_schemas.shipped().schemas}:
        schema = wire_schemas.shipped().newest(name)
        path = golden_file(schema)
        if not path.exists():
            of_event = schema.name != "ingest_record"
            path.write_bytes(encode(example(kind_of(schema))) if of_event else golden_record())
            written.append(path)
    return written


if __name__ == "__main__":
    write_missing()
