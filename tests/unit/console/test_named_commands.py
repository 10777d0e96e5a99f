"""Every command that a source names exists."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup

from harness.source_tree import ROOT, all_sources
from rollstream.console.app import build

NAMED = re.compile(r"`rollstream ((?:[a-z]+(?:-[a-z]+)* ?)+)")


def exists(words: list[str]) -> bool:
    """True where the words begin with a command; the rest are its arguments."""
    command: Any = typer.main.get_command(build())
    for word in words:
        if not isinstance(command, TyperGroup):
            break
        command = command.commands.get(word)
    return command is not None and not isinstance(command, TyperGroup)


NAMES = sorted(
    (match[1].strip(), str(path.relative_to(ROOT)))
    for _, path in all_sources()
    for match in NAMED.finditer(path.read_text(encoding="utf-8"))
)


@pytest.mark.parametrize(("words", "file"), NAMES)
def test_every_command_that_a_source_names_exists(words: str, file: str) -> None:
    assert exists(words.split()), f"{file} names `rollstream {words}`"


def test_names_are_found_and_wrong_ones_are_noticed() -> None:
    assert "topics create" in {words for words, _ in NAMES}
    assert not exists(["topics", "surprise"])
    assert not exists(["surprise"])
