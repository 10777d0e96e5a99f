"""A message that names a command names one that there is."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup

from harness.source_tree import ROOT, all_sources
from rollstream.console.app import build

NAMED = re.compile(r"`rollstream ((?:[a-z]+ ?)+)")


def is_there(words: list[str]) -> bool:
    """Whether the words lead to a command; what follows a command is its arguments."""
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
    assert is_there(words.split()), f"{file} names `rollstream {words}`"


def test_names_are_found_and_wrong_ones_are_noticed() -> None:
    assert "topics create" in {words for words, _ in NAMES}
    assert not is_there(["topics", "surprise"])
    assert not is_there(["surprise"])
