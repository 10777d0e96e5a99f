"""Whether what was written under one version of a schema can be read under another.

``python -m harness.compatibility`` compares each shipped version with all later ones.

Source: Avro 1.12 specification, "Schema Resolution"; and what Avro does not know: the columns of
``ingest_record``, that rows keep their digests, and that columns are made of rows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple

from rollstream.schemas.wire_schemas import in_rows, shipped

_NAMED = ("components", "attachments", "token_arrays")  # What producers name; each is read apart.
# Of a field, besides its type: what its bytes mean, and what a row has that does not name it.
_MEANING = ("default", "column", "dtype", "row")


class Incompatible(NamedTuple):
    """A field whose change is refused, by its path, and the reason."""

    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


def refused_changes() -> list[str]:
    """Each refused change between two shipped versions of a schema; empty where there is none."""
    names = sorted({schema.name for schema in shipped().schemas})
    return [
        f"{name}, v{older.version} to v{newer.version}: {found}"
        for name in names
        for older, newer in combinations(shipped().versions(name), 2)
        for found in incompatibilities(older.source, in_rows(newer, older))
    ]


def incompatibilities(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Incompatible]:
    """Each change with which data of the old version could not be read under the new one, or the
    other way round; empty where there is none.

    Args:
        old, new: two versions of one record's schema, as JSON.
    """
    return list(_of_schemas(old, new))


def _of_schemas(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Incompatible]:
    yield from _of_records("", old, new)
    names = [source["fields"][-1]["name"] for source in (old, new)]
    if "payload" in names and names != ["payload", "payload"]:
        yield Incompatible("payload", "is the last field: its content follows the record")
    places = dict(_columns(old))
    for name, path in _columns(new):
        if places.get(name, path) != path:
            reason = f"was {places[name]}; a column stays in the record that it is in"
            yield Incompatible(path, reason)


def _columns(source: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """The columns of rows: name and path."""
    for field in source["fields"]:
        if "column" in field:
            yield field["name"], path + field["name"]
        for inner in _records(field["type"]):
            yield from _columns(inner, f"{path}{field['name']}.")


def _records(avro_type: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(avro_type, list):
        for branch in avro_type:
            yield from _records(branch)
    elif isinstance(avro_type, dict) and avro_type["type"] == "record":
        yield avro_type
    elif isinstance(avro_type, dict):
        yield from _records(avro_type.get("items"))


def _of_records(
    path: str, old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[Incompatible]:
    for key in ("name", "namespace"):
        if old.get(key) != new.get(key):
            reason = f"{key} was {old.get(key)!r} and is {new.get(key)!r}; Avro finds records by it"
            yield Incompatible(path.rstrip(".") or "the record", reason)
    before, after = ({field["name"]: field for field in one["fields"]} for one in (old, new))
    for name, field in after.items():
        for alias in field.get("aliases", ()):
            if alias in before:
                before[name] = before.pop(alias)
    for name, field in before.items():
        if name in after:
            yield from _of_fields(path + name, field, after[name])
        elif needed := _why_needed(field):
            yield Incompatible(path + name, f"was removed, and {needed}")
    for name, field in after.items():
        if name not in before and (needed := _why_needed(field)):
            yield Incompatible(path + name, f"was added, and {needed}")


def _why_needed(field: Mapping[str, Any]) -> str:
    """Why a record without this field cannot be read with it; empty where it can."""
    if "default" not in field:
        return "has no default: give it one"
    if "column" not in field:
        return ""
    if field["column"] in _NAMED:
        return f"is a column of {field['column']}, which no other can replace"
    if "default" not in field["row"]:
        return "its rows have no default: give them one in `row`"
    if field["column"] == "array" and field["default"] != 0:
        return "each entry has the array: its default must be 0"
    if field["column"] in ("text", "number") and field["default"] != "":
        return "its default must be empty bytes, which stand for that of the rows"
    return ""


def _of_fields(path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Incompatible]:
    forgotten = {old["name"], *old.get("aliases", ())} - {new["name"], *new.get("aliases", ())}
    if forgotten:
        yield Incompatible(path, f"was called {sorted(forgotten)} too; keep these as aliases")
    for key in _MEANING:
        if old.get(key) != new.get(key) or (key in old) != (key in new):
            before, after = (repr(f[key]) if key in f else "missing" for f in (old, new))
            reason = (
                f"{key} was {before} and is {after}: older data would be read as something else"
            )
            yield Incompatible(path, reason)
    yield from _of_types(path, old["type"], new["type"])


def _of_types(path: str, old: Any, new: Any) -> Iterator[Incompatible]:
    match old, new:
        case {"type": "record"}, {"type": "record"}:
            yield from _of_records(f"{path}.", old, new)
        case {"type": "array", "items": before}, {"type": "array", "items": after}:
            yield from _of_types(path, before, after)
        case {"type": "map", "values": before}, {"type": "map", "values": after}:
            yield from _of_types(path, before, after)
        case list(), list() if len(old) == len(new):
            for before, after in zip(old, new, strict=True):
                yield from _of_types(path, before, after)
        case _:
            if _plain(old) != _plain(new):
                yield Incompatible(path, f"type was {_plain(old)} and is {_plain(new)}")


def _plain(avro_type: Any) -> Any:
    """A type without what is said about it."""
    if isinstance(avro_type, dict):
        return {key: _plain(value) for key, value in avro_type.items() if key != "doc"}
    return avro_type


if __name__ == "__main__":
    sys.exit("\n".join(refused_changes()) or None)  # A text is printed, with exit code 1.
