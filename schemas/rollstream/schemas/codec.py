"""Events to bytes and back: Avro single-object encoding.

Ten bytes in front name the writer's schema (marker C3 01, CRC-64-AVRO fingerprint), so a reader
needs nothing besides the bytes. ``decode(encode(event)) == event`` for every event, arrays bit for
bit. Arrays travel packed (little-endian bytes) and are never touched token by token.

Source: Avro 1.12 specification, "Single-object encoding".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from io import BytesIO
from math import isfinite, prod
from typing import Any, NamedTuple, TypeVar

import fastavro
import numpy as np

from rollstream.schemas import wire_schemas
from rollstream.schemas.bounds import CREATED_TS_MAX, INT_MAX, LONG_MAX, is_trailing_shape
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.event_converter import converter_of, schema_name
from rollstream.schemas.events import Dispatched, Event, Failed
from rollstream.schemas.header import RolloutHeader
from rollstream.schemas.order import UNKNOWN_STEP
from rollstream.schemas.plain_writer import PlainWriter
from rollstream.schemas.rollout_reader import RolloutReader
from rollstream.schemas.wire_schemas import PREFIX_BYTES, WireSchema

E = TypeVar("E")
_MEMOISED_FIELDS = frozenset(
    (
        *("segment_idx", "is_last_segment", "continuation_of", "prefix_hash", "lineage"),
        *("policy_version", "policy_epoch", "weight_step", "replica_id", "worker_id"),
        *("split", "stop_reason"),
    )
)
_PER_TOKEN_BYTES = {"logprobs": 4, "loss_mask": 1}
_RARE_PER_TOKEN_BYTES = {
    "actor_logprobs": 4,
    "ref_logprobs": 4,
    "token_rewards": 4,
    "weight_steps": 8,
}


class Segment(NamedTuple):
    """A decoded rollout segment: its header, and the fields behind it by name. Arrays are still
    packed: bytes, or views of the record's."""

    header: RolloutHeader
    body: Mapping[str, Any]


def encode_rollout(fields: Mapping[str, Any]) -> bytes:
    """A rollout segment from its fields, named as in the newest ``rollout`` schema."""
    return _plain_rollouts().write(fields) or _write(wire_schemas.newest("rollout"), fields)


@cache
def _plain_rollouts() -> PlainWriter:
    schema = wire_schemas.newest("rollout")
    return PlainWriter(schema.parsed["fields"], schema.prefix, _MEMOISED_FIELDS)


def encode(event: Event) -> bytes:
    """An event, under the newest version of its schema."""
    schema = wire_schemas.newest(schema_name(type(event).__name__))
    return _write(schema, converter_of(schema.prefix).to_wire(event))


def decode(value: bytes) -> Segment | Event:
    """What the bytes say.

    Raises:
        UnreadableEvent: no marker, a fingerprint nobody knows, bytes that end too early or too
            late, numbers out of bounds, or arrays whose lengths contradict the header.
    """
    schema = wire_schemas.by_prefix().get(value[:PREFIX_BYTES])
    if schema is None:
        raise _no_such_schema(value)
    try:
        if schema.name == "rollout":
            return _segment(schema, value)
        wire = _read(schema, value)
    except (EOFError, IndexError, KeyError, ValueError, OverflowError, MemoryError) as error:
        raise UnreadableEvent("torn", f"{schema.name}.v{schema.version}: {error!r}") from error
    event: Event = converter_of(schema.prefix).from_wire(wire)
    if isinstance(event, Dispatched | Failed):
        _check_counts(event)
    return event


def decode_as(kind: type[E], value: bytes) -> E:
    """``decode``, where only one kind of event may stand."""
    event = decode(value)
    if not isinstance(event, kind):
        raise UnreadableEvent(
            "not_an_event", f"{type(event).__name__} where {kind.__name__} is due"
        )
    return event


def _write(schema: WireSchema, wire: Mapping[str, Any]) -> bytes:
    stream = BytesIO()
    stream.write(schema.prefix)
    fastavro.schemaless_writer(stream, schema.parsed, wire)
    return stream.getvalue()


def _read(schema: WireSchema, value: bytes) -> dict[str, Any]:
    stream = BytesIO(value)
    stream.seek(PREFIX_BYTES)
    wire: Any = fastavro.schemaless_reader(stream, schema.parsed, None)
    if stream.tell() != len(value):
        extra = len(value) - stream.tell()
        raise UnreadableEvent("torn", f"{schema.name}.v{schema.version}: {extra} bytes behind it")
    fields: dict[str, Any] = wire
    return fields


def _segment(schema: WireSchema, value: bytes) -> Segment:
    found = _rollouts(schema.prefix).read(value)
    if found is None:
        body = _read(schema, value)
        header = RolloutHeader._make(map(body.pop, RolloutHeader._fields))
        _check_lengths(header, body)
    else:
        header, body = found
    _check_header(header)
    _check_values(header, body)
    return Segment(header, body)


@cache
def _rollouts(prefix: bytes) -> RolloutReader:
    return RolloutReader(wire_schemas.by_prefix()[prefix])


def _no_such_schema(value: bytes) -> UnreadableEvent:
    if value[:2] != wire_schemas.MARKER:
        return UnreadableEvent("not_an_event", f"begins with {value[:PREFIX_BYTES].hex()!r}")
    return UnreadableEvent("unknown_schema", f"fingerprint {value[2:PREFIX_BYTES].hex()!r}")


def _check_lengths(header: RolloutHeader, body: Mapping[str, Any]) -> None:
    """A producer in another language may err; what it sent must not reach a batch."""
    prompt, tokens = header.prompt_count, header.token_count
    if len(body["prompt_tokens"]) != 4 * prompt or len(body["output_tokens"]) != 4 * tokens:
        raise UnreadableEvent(
            "inconsistent", f"prompt_count {prompt} or token_count {tokens} contradicts the arrays"
        )
    for name, width in _PER_TOKEN_BYTES.items():
        _check_one(name, body[name], width * tokens)


def _check_values(header: RolloutHeader, body: Mapping[str, Any]) -> None:
    """What the header does not say: the rare arrays, and which values a mask has."""
    tokens, extras, mask = header.token_count, body["extras"], body["loss_mask"]
    if extras is not None:
        for name, width in _RARE_PER_TOKEN_BYTES.items():
            _check_one(name, extras[name], width * tokens)
        for array in extras["token_arrays"]:
            _check_token_array(array, tokens)
    if mask is not None and bytes(mask).translate(None, b"\x00\x01"):
        raise UnreadableEvent("inconsistent", "loss_mask has bytes other than 0 and 1")


def _check_token_array(array: Mapping[str, Any], tokens: int) -> None:
    """Trailing shapes may be anything within bounds; Python objects are never made."""
    try:
        dtype = np.dtype(array["dtype"])
    except (TypeError, ValueError, SyntaxError) as error:
        raise UnreadableEvent("inconsistent", f"token array dtype: {error}") from error
    shape = array["shape"]
    if dtype.kind not in "biufc" or not is_trailing_shape(shape, dtype.itemsize):
        raise UnreadableEvent(
            "inconsistent", f"token array {array['name']!r} has dtype {dtype}, shape {shape}"
        )
    _check_one(array["name"], array["data"], prod((tokens, *shape)) * dtype.itemsize)


def _check_header(header: RolloutHeader) -> None:
    """Avro's numbers have no bounds on the wire; ours have."""
    if not (
        0 <= header.group_size <= INT_MAX
        and 0 <= header.segment_idx <= INT_MAX
        and 0 <= header.policy_epoch <= INT_MAX
        and UNKNOWN_STEP <= header.weight_step <= LONG_MAX
        and 0 <= header.created_ts <= CREATED_TS_MAX
    ):
        raise UnreadableEvent("inconsistent", f"a number is out of bounds in {header}")
    if header.reward is not None and not isfinite(header.reward):
        raise UnreadableEvent("inconsistent", f"reward is {header.reward}")


def _check_counts(event: Dispatched | Failed) -> None:
    count = event.count if isinstance(event, Failed) else 1
    if not (0 <= event.group_size <= INT_MAX and 1 <= count <= INT_MAX):
        raise UnreadableEvent("inconsistent", f"a number is out of bounds in {event}")


def _check_one(name: str, packed: bytes | None, size: int) -> None:
    if packed is not None and len(packed) != size:
        raise UnreadableEvent("inconsistent", f"{name} has {len(packed)} bytes, not {size}")
