"""What the command line prints for help has none of the words that are retired."""

from __future__ import annotations

from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from harness.retired_words import uses
from rollstream.console.app import build


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
