"""The words that ``docs/glossary.md`` retires are nowhere: not in names, texts, docs or output."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from harness.source_tree import ROOT
from rollstream.console.app import build

GLOSSARY = ROOT / "docs" / "glossary.md"
FENCE = "```"
BETWEEN = "->"  # A retired pattern, and what is written instead.
KINDS = ("*.py", "*.md", "*.avsc", "*.toml", "*.yml", "*.yaml", "Makefile", "Dockerfile", "run")
NOT_OURS = {".venv", ".git", "build", "dist", "site", "runs", ".hypothesis", "node_modules"}


@cache
def retired() -> tuple[re.Pattern[str], ...]:
    """The patterns at the glossary's end."""
    last = GLOSSARY.read_text(encoding="utf-8").rstrip().split(FENCE)[-2]
    lines = [line for line in last.splitlines()[1:] if line.strip()]
    return tuple(re.compile(line.split(BETWEEN)[0].strip()) for line in lines)


def texts() -> list[Path]:
    """Every file that people read, but the glossary, which has to name what it retires."""
    found = {path for kind in KINDS for path in ROOT.rglob(kind) if path.is_file()}
    return sorted(
        path
        for path in found - {GLOSSARY, Path(__file__)}
        if not NOT_OURS.intersection(path.relative_to(ROOT).parts)
    )


def uses(text: str, where: str) -> list[str]:
    return [
        f"{where}:{number}: {match.group()!r} in {line.strip()!r}"
        for number, line in enumerate(text.splitlines(), start=1)
        for pattern in retired()
        if (match := pattern.search(line)) is not None
    ]


def test_the_glossary_ends_with_what_is_retired() -> None:
    assert len(retired()) > 20
    assert uses("and its claim was heard by SamplerDoor", "here")


def test_retired_words_are_in_no_name_text_or_document() -> None:
    found = [
        use
        for path in texts()
        for use in uses(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))
    ]
    assert not found, "\n".join(found)


def test_retired_words_are_in_no_path() -> None:
    wrong = [str(path.relative_to(ROOT)) for path in texts()]
    assert [use for path in wrong for use in uses(path, path)] == []


def _commands(command: Any, *path: str) -> list[tuple[str, ...]]:
    """The words that call each command, subcommands included."""
    subcommands = getattr(command, "commands", {})
    below = [deeper for name, sub in subcommands.items() for deeper in _commands(sub, *path, name)]
    return below or [path]


@pytest.mark.parametrize("path", _commands(get_command(build())), ids=" ".join)
def test_retired_words_are_in_no_help_text(path: tuple[str, ...]) -> None:
    help_text = CliRunner().invoke(build(), [*path, "--help"]).stdout
    assert path[-1] in help_text
    assert uses(help_text, " ".join(path)) == []
