"""Versions of schemas that were never shipped: what the next releases of Rollstream may write."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rollstream.schemas import events
from rollstream.schemas.wire_schemas import SchemaRegistry, shipped

Source = Mapping[str, Any]

RETIRED: Source = {"name": "retired", "type": "string", "default": "", "doc": "Removed by v2."}
REGION: Source = {"name": "region", "type": "string", "default": "nowhere", "doc": "Added by v2."}


def changed(source: Source, *, add: Sequence[Source] = (), remove: Sequence[str] = ()) -> Source:
    """A record's schema with other fields at its end."""
    found = copy.deepcopy(dict(source))
    kept = [field for field in found["fields"] if field["name"] not in remove]
    return {**found, "fields": [*kept, *add]}


def shipped_source(name: str) -> Source:
    """The newest shipped version of a schema."""
    return shipped().newest(name).source


def registry(**files: Source) -> SchemaRegistry:
    """A registry of these files; ``flushed_v1`` is ``flushed.v1.avsc``."""
    texts = {}
    for name, source in files.items():
        schema, _, version = name.rpartition("_")
        texts[f"{schema}.{version}.avsc"] = json.dumps(source)
    return SchemaRegistry(texts)


def flushed_with(**fields: Any) -> type[events.Flushed]:
    """``Flushed`` with more fields, by their defaults."""
    found: type[events.Flushed] = dataclasses.make_dataclass(
        "Flushed",
        [(name, type(default), default) for name, default in fields.items()],
        bases=(events.Flushed,),
        frozen=True,
        slots=True,
        kw_only=True,
    )
    return found
