"""The schemas under ``avsc/``, parsed once, found by name or by fingerprint.

The ``.avsc`` files are the only list of fields. The newest version of a name is the one that is
written.

Source: Avro 1.12 specification, "Single-object encoding" and "Parsing Canonical Form".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from io import BytesIO
from typing import Any

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from rollstream.schemas.errors import UnreadableEvent

MARKER = b"\xc3\x01"  # Avro single-object encoding, version 1.
PREFIX_BYTES = 10  # The marker and the 8-byte little-endian fingerprint.


@dataclass(frozen=True, slots=True, eq=False)
class WireSchema:
    """One version of one schema.

    Attributes:
        name: the file's name without version, for example ``batch_served``.
        version: 1, 2, …
        source: the parsed JSON of the file, with docs and logical types.
        parsed: the same for fastavro, without logical types: times stay integers of microseconds
            and arrays stay bytes.
        prefix: the ten bytes in front of each event of this schema.
    """

    name: str
    version: int
    source: Mapping[str, Any]
    parsed: Any
    prefix: bytes

    @property
    def fields(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(self.source["fields"])


def _without_logical_types(node: Any) -> Any:
    if isinstance(node, dict):
        if "logicalType" in node:
            return node["type"]
        return {key: _without_logical_types(value) for key, value in node.items() if key != "doc"}
    if isinstance(node, list):
        return [_without_logical_types(item) for item in node]
    return node


def _load(file_name: str, text: str) -> WireSchema:
    name, version, _ = file_name.split(".")
    source = json.loads(text)
    canonical = to_parsing_canonical_form(_without_logical_types(source))
    prefix = MARKER + bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))
    parsed = fastavro.parse_schema(_without_logical_types(source))
    return WireSchema(name, int(version.removeprefix("v")), source, parsed, prefix)


@cache
def all_schemas() -> tuple[WireSchema, ...]:
    """Every shipped schema, by name, then version."""
    folder = resources.files("rollstream.schemas") / "avsc"
    files = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".avsc"))
    loaded = [_load(name, (folder / name).read_text(encoding="utf-8")) for name in files]
    return tuple(sorted(loaded, key=lambda schema: (schema.name, schema.version)))


@cache
def newest(name: str) -> WireSchema:
    """The version of ``name`` that is written today."""
    return max((s for s in all_schemas() if s.name == name), key=lambda schema: schema.version)


@cache
def by_prefix() -> dict[bytes, WireSchema]:
    """Marker and fingerprint to schema."""
    return {schema.prefix: schema for schema in all_schemas()}


def schema_of(value: bytes) -> WireSchema:
    """The schema under which the bytes were written, by their prefix.

    Raises:
        UnreadableEvent: no marker, or an unknown fingerprint.
    """
    found = by_prefix().get(value[:PREFIX_BYTES])
    if found is not None:
        return found
    if value[:2] != MARKER:
        raise UnreadableEvent("not_an_event", f"begins with {value[:PREFIX_BYTES].hex()!r}")
    raise UnreadableEvent("unknown_schema", f"fingerprint {value[2:PREFIX_BYTES].hex()!r}")


def read_avro(schema: WireSchema, parsed: Any, value: bytes) -> tuple[dict[str, Any], int]:
    """The record behind the prefix, as ``parsed`` has it (of ``schema``), and where it ends.

    What is made is bounded by the bytes that there are, whatever counts they name.

    Raises:
        UnreadableEvent: the bytes end too early.
    """
    stream = BytesIO(value)
    stream.seek(PREFIX_BYTES)
    try:
        fields: Any = fastavro.schemaless_reader(stream, parsed, None)
    except (EOFError, IndexError, KeyError, ValueError, OverflowError, MemoryError) as error:
        raise UnreadableEvent("torn", f"{schema.name}.v{schema.version}: {error!r}") from error
    return fields, stream.tell()


def packed_dtype(avro_type: Any) -> tuple[str, bool] | None:
    """The dtype of a packed array's Avro type and whether null is allowed; None for other types."""
    if isinstance(avro_type, list):
        inner = [packed_dtype(branch) for branch in avro_type if branch != "null"]
        return (inner[0][0], True) if len(inner) == 1 and inner[0] else None
    if isinstance(avro_type, dict) and avro_type.get("logicalType") == "packed-array":
        return str(avro_type["dtype"]), False
    return None
