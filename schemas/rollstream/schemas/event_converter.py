"""Converts events to fastavro's dicts and back, after a plan made once for each schema.

Most fields are the same in both; a plan names the others: packed arrays and nested records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields as dataclass_fields
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, get_args, get_type_hints

import numpy as np

from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.wire_schemas import packed_dtype

_Convert = Callable[[Any], Any]


class EventConverter:
    """Converts one dataclass with slots, or one named tuple, which has exactly the record's fields.

    A named tuple has them in their order. Kinds of which logs hold millions are named tuples, since
    these are made faster.

    Args:
        named: the records of the schema that were defined so far: a later field may refer to one by
            its name.
    """

    def __init__(
        self,
        kind: type,
        record: Mapping[str, Any],
        named: dict[str, Mapping[str, Any]] | None = None,
    ) -> None:
        named = {} if named is None else named
        named[record["name"]] = record
        self._names = tuple(field["name"] for field in record["fields"])
        self._values_of = _as_tuple(attrgetter(*self._names), self._names)
        self._fields_of = _as_tuple(itemgetter(*self._names), self._names)
        self._make = _made_by_fields(kind, self._names)
        self._to: list[tuple[str, _Convert]] = []
        self._from: list[tuple[str, _Convert]] = []
        hints = get_type_hints(kind)
        for field in record["fields"]:
            found = _converters(field["type"], hints[field["name"]], named)
            if found is not None:
                self._to.append((field["name"], found[0]))
                self._from.append((field["name"], found[1]))

    def to_wire(self, value: Any) -> dict[str, Any]:
        """Returns the dict that fastavro writes."""
        wire = dict(zip(self._names, self._values_of(value), strict=True))
        for name, convert in self._to:
            wire[name] = convert(wire[name])
        return wire

    def from_wire(self, wire: dict[str, Any]) -> Any:
        """Returns the object of the dict that fastavro read, and changes that dict. Raises
        ``UnreadableEvent`` if bytes are no array."""
        for name, convert in self._from:
            wire[name] = convert(wire[name])
        return self._make(self._fields_of(wire))

    def all_from_wire(self, wires: Iterable[dict[str, Any]]) -> tuple[Any, ...]:
        """Returns ``from_wire`` of each."""
        found = [*wires]
        for name, convert in self._from:
            for wire in found:
                value = wire[name]
                if value == []:  # What most have.
                    wire[name] = ()
                elif value is not None:
                    wire[name] = convert(value)
        return tuple(map(self._make, map(self._fields_of, found)))


def _as_tuple(get: _Convert, names: tuple[str, ...]) -> _Convert:
    """Returns the getter of these names as one that returns a tuple for a single name, too."""
    return get if len(names) > 1 else lambda value: (get(value),)


def _made_by_fields(kind: type[Any], names: tuple[str, ...]) -> Callable[[Iterable[Any]], Any]:
    """Returns a function that makes an object of the values of all its fields, in this order."""
    if issubclass(kind, tuple):
        assert getattr(kind, "_fields") == names, kind  # noqa: B009
        return partial(tuple.__new__, kind)
    assert {field.name for field in dataclass_fields(kind)} == set(names), kind
    return lambda values: kind(**dict(zip(names, values, strict=True)))


def _converters(
    avro_type: Any, hint: Any, named: dict[str, Mapping[str, Any]]
) -> tuple[_Convert, _Convert] | None:
    """Returns how the value of a field gets into the dict, and out of it. None: the value is the
    same in both."""
    if isinstance(avro_type, str):
        avro_type = named.get(avro_type, avro_type)
    packed = packed_dtype(avro_type)
    if packed is not None:
        dtype = np.dtype(packed[0])
        return (
            lambda value: None if value is None else _packed(value, dtype),
            lambda value: None if value is None else _unpacked(value, dtype),
        )
    match avro_type:
        case {"type": "record"}:
            shape = EventConverter(hint, avro_type, named)
            # Copied: it may be the schema's default, which every older event shares.
            return shape.to_wire, lambda wire: shape.from_wire(dict(wire))
        case {"type": "array", "items": {"type": "record"} as items}:
            row, made = rows_of(hint)
            item = EventConverter(row, items, named)
            return (
                lambda values: [item.to_wire(value) for value in values],
                lambda wires: made(item.all_from_wire(wires)),
            )
        case {"type": "array"}:
            return list, tuple
    return None


def rows_of(hint: Any) -> tuple[Any, _Convert]:
    """Returns the class of the rows of which a tuple, or columns, are made, and what makes them."""
    return (get_args(hint)[0], tuple) if get_args(hint) else (hint.Row, hint.of)


def _packed(value: Any, dtype: np.dtype[Any]) -> bytes:
    return np.ascontiguousarray(value, dtype).tobytes()


def _unpacked(value: bytes, dtype: np.dtype[Any]) -> Any:
    if len(value) % dtype.itemsize:
        raise UnreadableEvent("inconsistent", f"{len(value)} bytes are no array of {dtype.str}")
    return np.frombuffer(value, dtype)
