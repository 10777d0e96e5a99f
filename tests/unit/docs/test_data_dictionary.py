"""docs/data_dictionary.md has a row for every field that there is, and for no other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from harness.documented_run import DocumentedRun
from harness.pages import rows, section
from rollstream.consumers.importing import old_fields
from rollstream.producers.rollouts.fields import FIELDS
from rollstream.sampler import Batch
from rollstream.schemas import wire_schemas
from rollstream.schemas.records import RolloutGroup, RolloutRecord, SampledBatch
from rollstream.store import open_dataset

PAGE = "data_dictionary.md"


def paths(name: str, avro_type: Any) -> Iterator[str]:
    """The leaves of a field as they are called in JSON; an element of a list is ``[]``."""
    match avro_type:
        case {"type": "record", "fields": inner}:
            for field in inner:
                yield from paths(f"{name}.{field['name']}", field["type"])
        case {"type": "array", "items": {"type": "record"} as items}:
            yield from paths(f"{name}[]", items)
        case _:
            yield name


def leaves(name: str, value: Any) -> Iterator[str]:
    """The leaves of a JSON value, as ``paths`` calls them."""
    match value:
        case dict():
            for key, inner in value.items():
                yield from leaves(f"{name}.{key}".removeprefix("."), inner)
        case [first, *_]:
            yield from leaves(f"{name}[]", first)
        case _:
            yield name


def test_row_files_have_a_row_for_each_column(tmp_path: Path) -> None:
    listed = rows(PAGE, "Row files")
    assert listed.pop() == "token_array_NAME"  # Of files that have it; the root is empty.
    assert sorted(listed) == sorted(open_dataset(tmp_path).schema.names)


def test_callers_fill_what_publish_takes() -> None:
    filled = re.compile(
        r"^\| `([^`]+)` \|[^|]+\| (?:[^|]+ or )?caller(?: or [^|]+)? \|", re.MULTILINE
    )
    columns = {"rollout_policy_version": "policy_version", "token_array_NAME": "token_arrays"}
    listed = {columns.get(name, name) for name in filled.findall(section(PAGE, "Row files"))}
    in_the_path = {"environment"}
    of_steps = {"trajectory_uid"}
    other_forms = {"weight_steps", "logprob_sum", "old_logprob_sum"}  # Of arguments in the table.
    assert listed == FIELDS.keys() - in_the_path | of_steps | other_forms


@pytest.mark.parametrize("kind", [RolloutRecord, RolloutGroup, SampledBatch])
def test_a_record_has_a_row_for_each_field(kind: type[Any]) -> None:
    assert rows(PAGE, kind.__name__) == [field.name for field in fields(kind)]


def test_a_batch_has_a_row_for_each_public_field() -> None:
    way_back = "read_group"  # Into the sampler's process, for `group` and `records`.
    assert rows(PAGE, "Batch") == [field.name for field in fields(Batch) if field.name != way_back]


def test_a_manifest_has_a_row_for_each_field() -> None:
    oldest, *_, newest = wire_schemas.shipped().versions("flushed")
    event = list(paths("event", wire_schemas.in_rows(newest, oldest)))
    place = ["schema", "environment", "generation", "partition", "offset"]
    assert rows(PAGE, "Manifest") == place + event


def test_a_batches_file_has_a_row_for_each_field(run: DocumentedRun) -> None:
    (path, *_) = sorted(run.root.glob("batches/*/*/*.json"))
    assert rows(PAGE, "Batches file") == list(leaves("", json.loads(path.read_text())))


def test_old_batches_have_a_row_for_each_field_that_is_read() -> None:
    tables = section(PAGE, "Old batches").split("| rollout |")
    named = [re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE) for table in tables]
    metadata, listed = (
        [name for cell in cells for name in re.findall(r"`(\w+)`", cell)] for cells in named
    )
    assert (metadata, sorted(listed)) == ([*old_fields.METADATA], sorted(old_fields.FIELDS))
