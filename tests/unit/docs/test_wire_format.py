"""docs/wire_format.md gives what another language's producer needs, as the code has it."""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

from harness.pages import page, rows, section, snippets
from rollstream.schemas import wire_schemas
from rollstream.schemas.codec import Segment, decode

PAGE = "wire_format.md"


def test_the_bytes_in_front_are_those_of_the_newest_schemas() -> None:
    listed = dict(re.findall(r"^\| `(\w+\.v\d+)` \| `([0-9a-f ]+)` \|$", page(PAGE), re.MULTILINE))
    expected = [wire_schemas.newest(name.partition(".")[0]) for name in listed]
    assert listed == {f"{one.name}.v{one.version}": one.prefix.hex(" ") for one in expected}
    assert set(listed) >= {"rollout.v1", "dispatched.v1", "failed.v1"}


def test_the_notes_are_about_fields_that_there_are() -> None:
    named = {field["name"] for field in wire_schemas.newest("rollout").fields}
    cells = re.findall(r"^\| (`[^|]+`) \|", section(PAGE, "Fields of a rollout"), re.MULTILINE)
    noted = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert noted
    assert noted - named == set()


def test_what_the_example_encodes_is_read_as_it_was_meant() -> None:
    (snippet,) = snippets(PAGE, "python")
    names: dict[str, Any] = {}
    exec(snippet, names)
    schema = resources.files("rollstream.schemas") / "avsc" / "rollout.v1.avsc"
    segment = decode(names["encoded"](schema.read_text(encoding="utf-8"), names["rollout"]))
    assert isinstance(segment, Segment)
    for name, value in names["rollout"].items():
        read = getattr(segment.header, name, None) if name not in segment.body else None
        found = bytes(segment.body[name]) if name in segment.body else read
        assert found == value, name


def test_the_reasons_for_dead_letters_are_listed() -> None:
    listed = rows(PAGE, "What a sealer checks, and dead letters")
    assert listed == ["not_an_event", "unknown_schema", "torn", "inconsistent"]
