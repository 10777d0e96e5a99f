"""``rollstream schemas check``"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from fastavro.schema import UnknownType

from rollstream.schemas.compatibility import incompatibilities
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.wire_schemas import parse, shipped


class BadSchema(RollstreamError, ValueError):
    """A file holds no schema of a record."""


class _Pair(NamedTuple):
    name: str
    old: Mapping[str, Any]
    new: Mapping[str, Any]


def check(
    old: Annotated[
        Path | None,
        typer.Argument(help="The older .avsc file, or its folder.", metavar="OLD"),
    ] = None,
    new: Annotated[
        Path | None, typer.Argument(help="The newer .avsc file, or folder.", metavar="NEW")
    ] = None,
) -> None:
    """Refuses a change of a schema with which old or new data could not be read, and names field
    and reason.

    Two folders are compared by the names of their files. Without arguments, each shipped version is
    compared with all later ones. Exit code 1 if a change is refused.
    """
    if (old is None) != (new is None):
        raise typer.BadParameter("give both files, or neither")
    pairs = list(_shipped() if old is None or new is None else _given(old, new))
    refused = 0
    for name, before, after in pairs:
        for found in incompatibilities(before, after):
            refused += 1
            typer.echo(f"{name}: {found}")
    if old is None:
        versions = len(shipped().schemas)
        typer.echo(f"{versions} versions shipped, {len(pairs)} pairs, {refused} changes refused")
    else:
        typer.echo(f"{refused} changes refused" if refused else "every change is compatible")
    if refused:
        raise typer.Exit(1)


def _shipped() -> Iterator[_Pair]:
    for name in sorted({schema.name for schema in shipped().schemas}):
        for older, newer in combinations(shipped().versions(name), 2):
            pair = f"{name}, v{older.version} to v{newer.version}"
            yield _Pair(pair, older.source, newer.source)


def _given(old: Path, new: Path) -> Iterator[_Pair]:
    if old.is_dir() != new.is_dir():
        folder, file = (old, new) if old.is_dir() else (new, old)
        raise BadSchema(f"{folder} is a folder and {file} is not: give two files or two folders")
    if not old.is_dir():
        yield _Pair(str(new), _read(old), _read(new))
        return
    names = sorted(path.name for path in old.glob("*.avsc"))
    if not names:
        raise BadSchema(f"{old} has no .avsc file: give the folder that holds them")
    for name in names:
        yield _Pair(str(new / name), _read(old / name), _read(new / name))


def _read(path: Path) -> Mapping[str, Any]:
    try:
        source = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadSchema(f"{path}: {error.strerror}: give the path of an .avsc file") from error
    except ValueError as error:
        raise BadSchema(f"{path} is no Avro schema, as it is no JSON ({error}): mend it") from error
    try:
        parse(source)
    except UnknownType as error:
        found = f"nothing defines type {error.name!r}"
        raise BadSchema(f"{path} is no Avro schema: {found}: mend it") from error
    except KeyError as error:
        raise BadSchema(f"{path} is no Avro schema: it has no {error}: mend it") from error
    except Exception as error:  # fastavro has no error of its own for all that may be wrong.
        raise BadSchema(f"{path} is no Avro schema: {error}: mend it") from error
    if not isinstance(source, dict) or source.get("type") != "record" or "fields" not in source:
        raise BadSchema(f"{path} holds no record with fields: give an .avsc file of one")
    return source
