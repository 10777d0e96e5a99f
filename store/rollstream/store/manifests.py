"""Manifests: ``Flushed`` events as JSON files, for readers without Kafka.

A manifest is named by its event's generation, partition and offset, so a second write of it gives
the same bytes. The event's ``now_ts`` is the time at which its groups were sealed. NaN, the reward
of a rollout that has none yet, is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from rollstream.schemas import events, wire_schemas
from rollstream.schemas.events import Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.wire_schemas import packed_dtype
from rollstream.store.blobs import Blobs, create_or_compare
from rollstream.store.errors import CorruptFile
from rollstream.store.layout import MANIFESTS, manifest_path

_SCHEMA = "flushed.v1"


class Manifest(NamedTuple):
    """One seal event with its partition and its offset in that partition's seal log."""

    address: PartitionAddress
    offset: int
    event: Flushed


def project(blobs: Blobs, address: PartitionAddress, offset: int, event: Flushed) -> str:
    """Writes the manifest of a confirmed event and returns its path. Repeating it changes nothing.

    Raises:
        CorruptFile: the path has a manifest with other bytes.
        StoreFull, StoreError: it could not be written.
    """
    path = manifest_path(address, offset)
    create_or_compare(blobs, path, encode_manifest(Manifest(address, offset, event)))
    return path


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as JSON, fields in the order of the schema. Equal ones give equal bytes."""
    content = {
        "schema": _SCHEMA,
        **manifest.address._asdict(),
        "offset": manifest.offset,
        "event": manifest.event,
    }
    # Digests are bytes, the only type here that JSON does not have.
    return orjson.dumps(content, default=bytes.hex, option=orjson.OPT_SERIALIZE_NUMPY)


def read_manifest(data: bytes) -> Manifest:
    """Decodes a manifest, exactly as it was projected.

    Raises:
        CorruptFile: the bytes are no manifest, or one of a schema that this version cannot read.
    """
    try:
        content = orjson.loads(data)
        if content["schema"] != _SCHEMA:
            raise CorruptFile(
                f"a manifest of schema {content['schema']!r}; this version reads {_SCHEMA}"
            )
        event = _record(Flushed, content["event"], wire_schemas.newest("flushed").source)
        address = PartitionAddress(
            content["environment"], content["generation"], content["partition"]
        )
        return Manifest(address, content["offset"], event)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFile(f"no manifest: {error!r} in {data[:80]!r}") from error


def list_manifests(blobs: Blobs, under: str = f"{MANIFESTS}/") -> Iterator[Manifest]:
    """Yields every manifest whose path begins with ``under``, in the order of paths.

    Raises:
        CorruptFile: a manifest that cannot be read.
    """
    for blob in blobs.list(under):
        if blob.path.endswith(".json"):
            try:
                yield read_manifest(blobs.read(blob.path))
            except CorruptFile as error:
                raise CorruptFile(f"{blob.path}: {error}") from error


def visible_files(blobs: Blobs) -> list[str]:
    """Paths of the files under ``groups/`` that manifests name: those that are part of the data."""
    return [file.path for manifest in list_manifests(blobs) for file in manifest.event.files]


def _record(kind: Any, content: Mapping[str, Any], record: Mapping[str, Any]) -> Any:
    return kind(**{f["name"]: _value(content[f["name"]], f["type"]) for f in record["fields"]})


def _value(content: Any, avro_type: Any) -> Any:
    packed = packed_dtype(avro_type)
    if packed is not None:
        return _array(content, packed[0])
    match avro_type:
        case "bytes":
            return bytes.fromhex(content)
        case {"type": "record", "name": name}:
            return _record(getattr(events, name), content, avro_type)
        case {"type": "array", "items": {"name": name} as items}:
            kind = _CLASSES.get(name) or getattr(events, name)
            return tuple(_record(kind, item, items) for item in content)
        case {"type": "array"}:
            return tuple(content)
    return content


_CLASSES = {"IncompleteFile": events.SealedFile}


def _array(content: list[Any], dtype: str) -> NDArray[Any]:
    if dtype == "<f8" and None in content:
        content = [np.nan if item is None else item for item in content]
    return np.array(content, dtype)
