"""Manifests: ``Flushed`` events as JSON files, for readers without Kafka.

A manifest is named by its event's generation, partition and offset, so a second write of it gives
the same bytes. The event's ``now_ts`` is the time at which its groups were sealed. NaN, the reward
of a rollout that has none yet, is null. A manifest names the version of its schema; one of an older
version is read as the newest, by field name and with defaults. Groups are rows in all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import orjson
from numpy.typing import NDArray

import rollstream
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.event_converter import rows_of
from rollstream.schemas.events import (
    FailedMembers,
    Flushed,
    ProducerInFlight,
    Settlements,
    UnreadRanges,
)
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.wire_schemas import in_rows, packed_dtype, shipped
from rollstream.store.blobs import Blobs, create_or_compare
from rollstream.store.errors import CorruptFile, NewerFile
from rollstream.store.layout import MANIFESTS, manifest_path, offset_in

_SCHEMA = "flushed"
_AS_OLDER = {3: 2}  # Version 3 differs from 2 in that groups are columns, which here are rows.


class Manifest(NamedTuple):
    """One seal event with its partition and its offset in that partition's seal log."""

    address: PartitionAddress
    offset: int
    event: Flushed


class FlushColumns(NamedTuple):
    """What a flush sealed and settled, without what only the rows of its files need.

    Attributes:
        now_ts: its log time in microseconds.
        paths: of its files. groups: each as its manifest has it, by the names of ``SealedGroup``.
        segments: by the names of ``SealedSegments``, the columns that were asked for.
    """

    now_ts: int
    paths: Sequence[str]
    groups: Sequence[Mapping[str, Any]]
    segments: Mapping[str, Any]
    settled: tuple[Settlements, ...]
    unread: tuple[UnreadRanges, ...]
    failed: tuple[FailedMembers, ...]


def project(blobs: Blobs, address: PartitionAddress, offset: int, event: Flushed) -> int:
    """Writes the manifest of a confirmed event and returns its bytes. Repeating it changes nothing.

    Raises:
        CorruptFile: the path has a manifest of another event.
        StoreFull, StoreError: it could not be written.
    """
    path = manifest_path(address, offset)
    manifest = Manifest(address, offset, event)
    data = encode_manifest(manifest)
    try:
        create_or_compare(blobs, path, data)
    except CorruptFile:
        data = blobs.read(path)
        if not is_manifest_of(data, manifest):
            raise
    return len(data)


def is_manifest_of(data: bytes, manifest: Manifest) -> bool:
    """Whether the bytes are this manifest, whichever version of Rollstream wrote them."""
    expected = encode_manifest(manifest)
    if data == expected:
        return True
    try:
        return encode_manifest(read_manifest(data)) == expected
    except CorruptFile:
        return False


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as JSON, fields in the order of the schema. Equal ones give equal bytes."""
    version = shipped().newest(_SCHEMA).version
    event = {field.name: getattr(manifest.event, field.name) for field in fields(manifest.event)}
    content = {
        "schema": _label(_AS_OLDER.get(version, version)),
        **manifest.address._asdict(),
        "offset": manifest.offset,
        "event": {**event, "groups": [group._asdict() for group in manifest.event.groups]},
    }
    return orjson.dumps(content, default=_in_json, option=orjson.OPT_SERIALIZE_NUMPY)


def _in_json(value: bytes | ProducerInFlight) -> str | dict[str, Any]:
    """Of the types that JSON does not have: digests, and named tuples."""
    return value.hex() if isinstance(value, bytes) else value._asdict()


def read_manifest(data: bytes) -> Manifest:
    """Decodes a manifest, exactly as it was projected.

    Raises:
        CorruptFile: the bytes are no manifest.
        NewerFile: a newer version of Rollstream wrote it.
    """
    with _as_corrupt(data):
        content = _content(data)
        event = _record(Flushed, content["event"], _in_rows())
        address = PartitionAddress(
            content["environment"], content["generation"], content["partition"]
        )
        return Manifest(address, content["offset"], event)


def paths_named(blobs: Blobs, path: str) -> tuple[str, ...]:
    """The files under ``groups/`` that a manifest names; nothing else of it is decoded.

    Raises:
        BlobMissing, CorruptFile, NewerFile: as ``load_manifest``.
    """
    with _naming(path):
        data = blobs.read(path)
        with _as_corrupt(data):
            return tuple(file["path"] for file in _content(data)["event"]["files"])


def read_columns(blobs: Blobs, path: str, segments: Sequence[str]) -> FlushColumns:
    """Decodes of a manifest what counts rollouts, at a quarter of the cost of ``load_manifest``.

    Raises:
        BlobMissing, CorruptFile, NewerFile: as ``load_manifest``.
    """
    with _naming(path):
        data = blobs.read(path)
        with _as_corrupt(data):
            event = _content(data)["event"]
            of = {one["name"]: one["type"] for one in _in_rows()["fields"]}
            types = {one["name"]: one["type"] for one in of["segments"]["fields"]}
            parts = {
                name: _value(event[name], of[name], _hints(Flushed)[name])
                for name in ("settled", "unread", "failed")
                if name in event
            }
            return FlushColumns(
                now_ts=event["now_ts"],
                paths=[file["path"] for file in event["files"]],
                groups=event["groups"],
                segments={
                    name: _value(event["segments"][name], types[name], None) for name in segments
                },
                settled=parts["settled"],
                unread=parts.get("unread", ()),
                failed=parts.get("failed", ()),
            )


def _content(data: bytes) -> Mapping[str, Any]:
    content: Mapping[str, Any] = orjson.loads(data)
    known = [_label(schema.version) for schema in shipped().versions(_SCHEMA)]
    if content["schema"] not in known:
        raise NewerFile(
            f"a manifest of schema {content['schema']!r}; rollstream {rollstream.__version__} "
            f"reads {', '.join(known)}: upgrade this process to the version of the sealers"
        )
    return content


@contextmanager
def _as_corrupt(data: bytes) -> Iterator[None]:
    """What is raised in the block by bytes that are no manifest is a CorruptFile."""
    try:
        yield
    except (ValueError, KeyError, TypeError, UnreadableEvent) as error:
        raise CorruptFile(
            f"no manifest: {error!r} in {data[:80]!r}; restore the file from a copy, "
            "`rollstream audit` compares it with the seal log"
        ) from error


def list_manifests(blobs: Blobs, under: str = f"{MANIFESTS}/") -> Iterator[Manifest]:
    """Yields every manifest whose path begins with ``under``, in the order of paths.

    Raises:
        CorruptFile, NewerFile: a manifest that cannot be read.
    """
    for blob in blobs.list(under):
        if offset_in(blob.path) is not None:
            yield load_manifest(blobs, blob.path)


def load_manifest(blobs: Blobs, path: str) -> Manifest:
    """Reads one.

    Raises:
        BlobMissing: there is none. CorruptFile, NewerFile: it cannot be read; the error names it.
    """
    with _naming(path):
        return read_manifest(blobs.read(path))


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """An error of the block about what a manifest holds names it."""
    try:
        yield
    except (CorruptFile, NewerFile) as error:
        raise type(error)(f"{path}: {error}") from error


@cache
def _in_rows() -> Mapping[str, Any]:
    """The schema of what a manifest has of an event."""
    return in_rows(shipped().newest(_SCHEMA), shipped().versions(_SCHEMA)[0])


def _label(version: int) -> str:
    return f"{_SCHEMA}.v{version}"


def _record(kind: Any, content: Mapping[str, Any], record: Mapping[str, Any]) -> Any:
    hints = _hints(kind)
    values = {}
    for field in record["fields"]:
        name, avro_type = field["name"], field["type"]
        if name in content or "default" not in field:
            values[name] = _value(content[name], avro_type, hints[name])
        else:
            values[name] = _default(field["default"], avro_type, hints[name])
    return kind(**values)


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _value(content: Any, avro_type: Any, hint: Any) -> Any:
    packed = packed_dtype(avro_type)
    if packed is not None:
        return _array(content, packed[0])
    match avro_type:
        case "bytes":
            return bytes.fromhex(content)
        case {"type": "record"}:
            return _record(hint, content, avro_type)
        case {"type": "array", "items": {"type": "record"} as items}:
            row, made = rows_of(hint)
            return made(_record(row, item, items) for item in content)
        case {"type": "array"}:
            return tuple(content)
    return content


def _default(default: Any, avro_type: Any, hint: Any) -> Any:
    """What Avro has as a text is bytes; the rest is as in a manifest."""
    packed = packed_dtype(avro_type)
    if isinstance(default, str) and (packed is not None or avro_type == "bytes"):
        raw = default.encode("latin-1")
        return raw if packed is None else np.frombuffer(raw, packed[0])
    return default if default is None else _value(default, avro_type, hint)


def _array(content: list[Any], dtype: str) -> NDArray[Any]:
    if dtype == "<f8" and None in content:
        content = [np.nan if item is None else item for item in content]
    return np.fromiter(content, dtype, len(content))  # Twice as fast as np.array.
