"""What may change from one version of a schema to the next."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from harness.compatibility import incompatibilities, refused_changes
from harness.releases import second_ingest_record
from harness.versions import REGION, RETIRED, Source, changed, shipped_source

INGEST = shipped_source("ingest_record")
FLUSHED = shipped_source("flushed")


@pytest.mark.proves("F19")
def test_every_shipped_version_is_compatible_with_all_later_ones() -> None:
    assert refused_changes() == []


def test_fields_with_defaults_may_come_and_go_in_any_order() -> None:
    assert incompatibilities(INGEST, second_ingest_record()) == []
    assert incompatibilities(second_ingest_record(), INGEST) == []
    older, newer = changed(FLUSHED, add=[RETIRED]), changed(FLUSHED, add=[REGION])
    assert incompatibilities(older, newer) == []
    turned = {**FLUSHED, "fields": FLUSHED["fields"][::-1]}
    assert incompatibilities(FLUSHED, turned) == []


def test_descriptions_may_change() -> None:
    told = copy.deepcopy(dict(FLUSHED))
    for field in told["fields"]:
        field["doc"] = "Told anew."
    told["doc"] = "The same."
    assert incompatibilities(FLUSHED, told) == []


def field_of(source: Any, *path: str) -> Any:
    """A field of a record, or of the records in it."""
    name, *rest = path
    field = next(field for field in source["fields"] if field["name"] == name)
    if not rest:
        return field
    inner = field["type"]
    inner = inner[1] if isinstance(inner, list) else inner
    return field_of(inner.get("items", inner), *rest)


def remove(source: Any, name: str) -> None:
    source["fields"] = [field for field in source["fields"] if field["name"] != name]


def move_out_of_extras(source: Any) -> None:
    extras = field_of(source, "extras")["type"][1]
    source["fields"].insert(0, field_of(extras, "prefix_hash"))
    remove(extras, "prefix_hash")


TEXT = {"type": "bytes", "column": "text", "doc": "A text."}
REFUSED: dict[str, tuple[Any, Callable[[Any], Any], str, str]] = {
    "an event's field without default is added": (
        FLUSHED,
        lambda s: s["fields"].append({"name": "more", "type": "long"}),
        "more",
        "was added, and has no default",
    ),
    "one is removed": (
        FLUSHED,
        lambda s: remove(s, "watermark"),
        "watermark",
        "was removed, and has no default",
    ),
    "in a record of its own": (
        FLUSHED,
        lambda s: remove(field_of(s, "files")["type"]["items"], "checksum"),
        "files.checksum",
        "was removed, and has no default",
    ),
    "a type changes": (
        FLUSHED,
        lambda s: field_of(s, "files", "rows").update(type="long"),
        "files.rows",
        "type was int and is long",
    ),
    "a packed array changes": (
        FLUSHED,
        lambda s: field_of(s, "touched", "counts")["type"].update(dtype="<i8"),
        "touched.counts",
        "'dtype': '<i4'",
    ),
    "a union gets a branch": (
        shipped_source("resumed"),
        lambda s: field_of(s, "checkpointed_step").update(type=["null", "long", "string"]),
        "checkpointed_step",
        "type was ['null', 'long']",
    ),
    "a record is renamed": (
        FLUSHED,
        lambda s: field_of(s, "files")["type"]["items"].update(name="SealedBlob"),
        "files",
        "name was 'SealedFile' and is 'SealedBlob'",
    ),
    "a namespace changes": (
        FLUSHED,
        lambda s: s.update(namespace="rollstream.groups.v2"),
        "the record",
        "namespace was 'rollstream.groups.v1'",
    ),
    "a default changes": (
        INGEST,
        lambda s: field_of(s, "shared", "replica_id").update(default="nobody"),
        "shared.replica_id",
        "default was 'unknown' and is 'nobody'",
    ),
    "that of rows changes": (
        INGEST,
        lambda s: field_of(s, "segment_idx")["row"].update(default=1),
        "segment_idx",
        "row was {'type': 'int', 'default': 0}",
    ),
    "a column's numbers change": (
        INGEST,
        lambda s: field_of(s, "reward").update(dtype="<f4"),
        "reward",
        "dtype was '<f8' and is '<f4'",
    ),
    "a column whose rows need it is removed": (
        INGEST,
        lambda s: remove(s, "example_id"),
        "example_id",
        "its rows have no default",
    ),
    "so is one that each entry has": (
        INGEST,
        lambda s: remove(s, "prompt_tokens"),
        "prompt_tokens",
        "each entry has the array",
    ),
    "so is one that producers name": (
        INGEST,
        lambda s: remove(field_of(s, "extras")["type"][1], "token_arrays"),
        "extras.token_arrays",
        "is a column of token_arrays",
    ),
    "a text is added with another default than none": (
        INGEST,
        lambda s: s["fields"].insert(
            0, {"name": "x", "default": "a", "row": {"type": "string", "default": "a"}, **TEXT}
        ),
        "x",
        "its default must be empty bytes",
    ),
    "a column moves": (INGEST, move_out_of_extras, "prefix_hash", "was extras.prefix_hash"),
    "the payload is not the last": (
        INGEST,
        lambda s: s["fields"].append(dict(REGION)),
        "payload",
        "is the last field",
    ),
}


@pytest.mark.parametrize(("source", "change", "field", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_change_that_data_could_not_be_read_with_is_refused_by_name(
    source: Any, change: Callable[[Any], Any], field: str, reason: str
) -> None:
    new = copy.deepcopy(dict(source))
    change(new)
    found = {one.field: one.reason for one in incompatibilities(source, new)}
    assert reason in found[field], found
    assert len(found) == 1


def renamed(source: Source, name: str, new: str, aliases: list[str]) -> Source:
    """The schema where one of its columns among the extras has another name."""
    found = copy.deepcopy(dict(source))
    extras = next(field for field in found["fields"] if field["name"] == "extras")
    (column,) = (field for field in extras["type"][1]["fields"] if field["name"] == name)
    column |= {"name": new, "aliases": aliases}
    return found


def test_a_column_may_be_renamed_where_it_keeps_its_older_names() -> None:
    again = renamed(INGEST, "old_logprobs", "trainer_logprobs", ["old_logprobs", "actor_logprobs"])
    assert incompatibilities(INGEST, again) == []
    forgets = renamed(INGEST, "old_logprobs", "trainer_logprobs", ["old_logprobs"])
    (refused,) = incompatibilities(INGEST, forgets)
    assert "actor_logprobs" in refused.reason
