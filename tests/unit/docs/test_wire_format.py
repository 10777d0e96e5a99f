"""docs/wire_format.md gives what another language's producer needs, as the code has it."""

from __future__ import annotations

import re
import struct
from hashlib import blake2b
from importlib import resources
from typing import Any

import numpy as np
import pytest

from harness.pages import page, rows, section, snippets
from harness.rollouts import make_entry, make_record, make_step
from harness.source_tree import ROOT
from rollstream.schemas import wire_schemas
from rollstream.schemas.fields import named, row_fields
from rollstream.schemas.ids import step_rollout_uid
from rollstream.schemas.ingest.entry import Entry
from rollstream.schemas.ingest.record import IngestRecord, decode_record
from rollstream.schemas.reasons import LetterReason

PAGE = "wire_format.md"


def test_the_bytes_in_front_are_those_of_the_newest_schemas() -> None:
    listed = dict(re.findall(r"^\| `(\w+\.v\d+)` \| `([0-9a-f ]+)` \|$", page(PAGE), re.MULTILINE))
    shipped = {f"{one.name}.v{one.version}": one for one in wire_schemas.shipped().schemas}
    assert listed == {name: shipped[name].prefix.hex(" ") for name in listed}
    newest = {wire_schemas.shipped().newest(name.partition(".")[0]) for name in listed}
    assert newest <= {shipped[name] for name in listed}
    assert set(listed) >= {"ingest_record.v3"}


def test_the_go_program_has_the_same_bytes_in_front() -> None:
    text = (ROOT / "examples/go_producer/main.go").read_text(encoding="utf-8")
    (listed,) = re.findall(r"prefix = \[\]byte\{([^}]+)\}", text)
    prefix = bytes(int(byte, 16) for byte in listed.split(", "))
    assert prefix == wire_schemas.shipped().newest("ingest_record").prefix


def test_the_tables_have_every_field_of_a_record_in_its_order() -> None:
    fields = {
        field["name"]: field for field in wire_schemas.shipped().newest("ingest_record").fields
    }
    columns = [name for name, field in fields.items() if "column" in field][2:]
    listed = rows(PAGE, "The record")
    once = [name for name in fields if name not in columns]
    shared = [field["name"] for field in fields["shared"]["type"]["items"]["fields"]]
    extras = [field["name"] for field in fields["extras"]["type"][1]["fields"]]
    assert listed == [*once, *columns, *shared, *extras]


def test_the_tables_have_the_defaults() -> None:
    cells = re.findall(r"^\| `(\w+)` \|(.*)\|", section(PAGE, "The record"), re.MULTILINE)
    table = {name: [cell.strip(" `") for cell in rest.split("|")] for name, rest in cells}
    for field in named("shared"):
        spelled = "" if field.required else str(field.default) or '""'
        assert table[field.name][0] == spelled, field.name
    for field in named("text", "number"):
        if not field.extra:
            default = "NaN" if field.row_type == ["null", "double"] else field.default
            if field.row_type == "boolean":
                default = int(field.default)
            assert table[field.name][1] == (str(default or 0) if field.dtype else default or '""')


def test_the_payload_is_said_to_have_its_columns_in_their_order() -> None:
    (said,) = re.findall(r"^\*\*`payload`\*\* has no gaps: (.*?), each", page(PAGE), re.M | re.S)
    columns = [field.name for field in named("text", "array") if not field.extra]
    assert re.findall(r"`(\w+)`", said) == columns


@pytest.fixture
def example() -> dict[str, Any]:
    """The names that the page's Python defines."""
    (snippet,) = snippets(PAGE, "python")
    names: dict[str, Any] = {}
    exec(snippet, names)
    return names


def test_what_the_example_encodes_is_read_as_it_was_meant(example: dict[str, Any]) -> None:
    schema = resources.files("rollstream.schemas") / "avsc" / "ingest_record.v3.avsc"
    rollouts = example["rollouts"]
    value = example["encoded"](schema.read_text(encoding="utf-8"), "math", 4, rollouts)
    record = decode_record(value)
    assert (record.environment, record.worker_id) == ("math", "worker-7")
    assert (record.partitions, record.count, dict(record.broken)) == (4, 2, {})
    assert not any(record.kinds)
    for name in rollouts[0]:
        assert values(record, name) == [rollout[name] for rollout in rollouts], name
    (created,) = set(record.values("created_ts"))
    assert created > 1_700_000_000_000_000


def values(record: IngestRecord, name: str) -> list[Any]:
    """One value an entry; a list or None of an array."""
    field = row_fields()[name]
    if field.column != "array":
        return record.values(name)
    packed = [record.entry(index).fields[name] for index in range(record.count)]
    return [None if one is None else np.frombuffer(one, field.dtype).tolist() for one in packed]


def test_the_names_that_the_page_bounds_are_those_that_are_checked() -> None:
    text = section(PAGE, "Sizes").replace("\n", " ")
    ((most, listed),) = re.findall(r"at most ([\d,]+) characters: (.*?)\. ", text)
    characters = int(most.replace(",", ""))
    bounded = set()
    texts = {field.name for field in named("shared", "text") if field.row_type == "string"}
    for name in texts - {"policy_version", "split", "metadata"}:
        assert not make_record([named_so(name, "n" * characters)]).broken, name
        if make_record([named_so(name, "n" * (characters + 1))]).broken:
            bounded.add(name)
    assert bounded == set(re.findall(r"`(\w+)`", listed))


def named_so(field: str, value: str) -> Entry:
    """An entry with this name; a step's rollout has a uid that is made of its trajectory's."""
    if field == "trajectory_uid":
        return make_step("prompt-1", value)
    return make_entry(**{field: value})


def test_the_rule_of_a_steps_uid_is_that_of_the_page() -> None:
    text = section(PAGE, "The record")
    ((prompt, trajectory, uid),) = re.findall(r"`([\w-]+)` and `([\w-]+)` give\s+`(\w+)`", text)
    framed = struct.pack("<i", len(prompt)) + f"{prompt}{trajectory}".encode()
    spelled = blake2b(framed, digest_size=16).hexdigest()
    spelled += blake2b(trajectory.encode(), digest_size=8).hexdigest()
    assert uid == spelled == step_rollout_uid(prompt, trajectory)


def test_what_the_page_leaves_to_the_producer_is_not_checked() -> None:
    assert not make_record([make_entry(messages="no JSON")]).broken


def test_the_reasons_for_dead_letters_are_listed() -> None:
    assert rows(PAGE, "What a sealer checks, and dead letters") == list(LetterReason)
