"""``rollstream schemas check``"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from harness.versions import REGION, changed, shipped_source
from rollstream.console.app import build


def check(*arguments: str | Path) -> Result:
    return CliRunner().invoke(build(), ["schemas", "check", *map(str, arguments)])


def written(path: Path, source: Any) -> Path:
    path.write_text(json.dumps(source), encoding="utf-8")
    return path


@pytest.mark.proves("F19")
def test_a_change_is_refused_with_the_field_and_the_reason(tmp_path: Path) -> None:
    source = shipped_source("flushed")
    old = written(tmp_path / "flushed.v1.avsc", source)
    good = written(tmp_path / "good.avsc", changed(source, add=[REGION]))
    bad = written(tmp_path / "bad.avsc", changed(source, remove=["watermark"]))
    done = check(old, good)
    assert (done.exit_code, done.stdout) == (0, "every change is compatible\n")
    done = check(old, bad)
    assert (done.exit_code, done.stdout) == (
        1,
        f"{bad}: watermark: was removed, and has no default: give it one\n1 changes refused\n",
    )


def test_without_files_all_that_is_shipped_is_compared() -> None:
    done = check()
    assert done.exit_code == 0
    assert "versions shipped" in done.stdout
    assert "0 changes refused" in done.stdout


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        (None, "No such file or directory: give the path"),
        ("{", "is no Avro schema, as it is no JSON (Expecting property name"),
        (
            '{"type": "record", "name": "X", "fields": [{"name": "a", "type": "y"}]}',
            "is no Avro schema: nothing defines type 'y': mend it",
        ),
        ('{"type": "record", "name": "X"}', "holds no record with fields"),
        (
            '{"type": "record", "name": "X", "fields": [{"name": "a", "type": {"type": "array"}}]}',
            "is no Avro schema: it has no 'items': mend it",
        ),
        ('"string"', "holds no record"),
    ],
    ids=["missing", "no JSON", "unknown type", "no fields", "bad field", "no record"],
)
def test_files_that_hold_no_schema_are_named_with_a_remedy(
    tmp_path: Path, text: str | None, finding: str
) -> None:
    path = tmp_path / "x.avsc"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    done = check(path, path)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"rollstream: {path}")
    assert finding in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_folders_are_compared_by_the_names_of_their_files(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
        written(folder / "acked.v1.avsc", shipped_source("acked"))
    source = shipped_source("flushed")
    written(old / "flushed.v1.avsc", source)
    file = written(new / "flushed.v1.avsc", changed(source, remove=["watermark"]))
    done = check(old, new)
    assert (done.exit_code, done.stdout.splitlines()[1]) == (1, "1 changes refused")
    assert done.stdout.startswith(f"{file}: watermark: was removed")
    file.unlink()
    assert f"{file}: No such file or directory" in check(old, new).stderr
    assert "give two files or two folders" in check(old, new / "acked.v1.avsc").stderr
    assert "has no .avsc file" in check(tmp_path, new).stderr


def test_one_file_alone_is_a_usage_error(tmp_path: Path) -> None:
    assert check(written(tmp_path / "a.avsc", shipped_source("acked"))).exit_code == 2
