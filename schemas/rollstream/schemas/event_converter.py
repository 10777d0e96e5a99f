"""Converts events to fastavro's dicts and back, after a plan made once for each schema.

Most fields are the same in both; a plan names the others: packed arrays and nested records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields as dataclass_fields
from functools import cache
from operator import attrgetter
from typing import Any, get_args

import numpy as np

from rollstream.schemas import events, wire_schemas
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import Event
from rollstream.schemas.wire_schemas import packed_dtype

_Convert = Callable[[Any], Any]
# Nested records of one dataclass: Avro wants another name for each definition.
_SAME_SHAPE = {
    "IncompleteFile": "SealedFile",
    "ReplacingGroup": "ChosenGroup",
    "ReplacedPosition": "LogPosition",
}


class EventConverter:
    """Converts one dataclass, which has exactly the record's fields."""

    def __init__(self, kind: type, record: Mapping[str, Any]) -> None:
        self._kind = kind
        self._names = tuple(field["name"] for field in record["fields"])
        assert len(self._names) == len(dataclass_fields(kind)), kind
        self._values_of = attrgetter(*self._names)
        self._to: list[tuple[str, _Convert]] = []
        self._from: list[tuple[str, _Convert]] = []
        for field in record["fields"]:
            found = _converters(field["type"])
            if found is not None:
                self._to.append((field["name"], found[0]))
                self._from.append((field["name"], found[1]))

    def to_wire(self, value: Any) -> dict[str, Any]:
        """The dict that fastavro writes."""
        values = self._values_of(value) if len(self._names) > 1 else (self._values_of(value),)
        wire = dict(zip(self._names, values, strict=True))
        for name, convert in self._to:
            wire[name] = convert(wire[name])
        return wire

    def from_wire(self, wire: dict[str, Any]) -> Any:
        """The dataclass, from the dict that fastavro read, which is changed; ``UnreadableEvent``
        where bytes are no array."""
        for name, convert in self._from:
            wire[name] = convert(wire[name])
        return self._kind(**wire)


@cache
def converter_of(prefix: bytes) -> EventConverter:
    """The converter of the events whose bytes begin with this prefix."""
    schema = wire_schemas.by_prefix()[prefix]
    return EventConverter(_event_class(schema.name), schema.source)


@cache
def schema_name(class_name: str) -> str:
    """``BatchServed`` to ``batch_served``."""
    letters = (f"_{c.lower()}" if c.isupper() else c for c in class_name)
    return "".join(letters).removeprefix("_")


@cache
def _event_class(name: str) -> type[Event]:
    kinds: tuple[type[Event], ...] = get_args(Event)
    return next(kind for kind in kinds if schema_name(kind.__name__) == name)


def _converters(avro_type: Any) -> tuple[_Convert, _Convert] | None:
    """To the dict and from it; None: the value is the same in both."""
    packed = packed_dtype(avro_type)
    if packed is not None:
        dtype = np.dtype(packed[0])
        return (
            lambda value: None if value is None else _packed(value, dtype),
            lambda value: None if value is None else _unpacked(value, dtype),
        )
    match avro_type:
        case {"type": "record", "name": name}:
            shape = EventConverter(_nested_class(name), avro_type)
            return shape.to_wire, shape.from_wire
        case {"type": "array", "items": {"name": name} as items}:
            item = EventConverter(_nested_class(name), items)
            return (
                lambda values: [item.to_wire(value) for value in values],
                lambda values: tuple([item.from_wire(value) for value in values]),
            )
        case {"type": "array"}:
            return list, tuple
    return None


def _nested_class(name: str) -> type:
    found: type = getattr(events, _SAME_SHAPE.get(name, name))
    return found


def _packed(value: Any, dtype: np.dtype[Any]) -> bytes:
    return np.ascontiguousarray(value, dtype).tobytes()


def _unpacked(value: bytes, dtype: np.dtype[Any]) -> Any:
    if len(value) % dtype.itemsize:
        raise UnreadableEvent("inconsistent", f"{len(value)} bytes are no array of {dtype.str}")
    return np.frombuffer(value, dtype)
