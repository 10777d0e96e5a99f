"""The page of all commands, made of the command line itself.

``python -m harness.commands_page`` writes it; a test compares the page with what this makes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from harness.source_tree import ROOT
from rollstream.console.app import build

PAGE = ROOT / "docs" / "reference" / "commands.md"
HEAD = """# Commands

Each command has `--help`. Commands that need a deployment take `--config FILE`; the default is
`rollstream.toml` in the current folder. `--json` prints the same as JSON, for other programs. To
install the command line, see [Install](../install.md).

An error is one line on stderr, with exit code 1. A wrong option gives exit code 2.

Every command takes `--log-format json`: each log line and error on stderr is then a JSON object.
It has `time` (UTC), `level`, `logger`, `message` and `process`. Where they exist, it also has
`exception` and fields such as `topic` and `partition`. Your own programs call
`rollstream.runtime.logs.configure("json")`; a sampler's actor that they start logs likewise.
"""
# Each command has them.
_EVERYWHERE = {"install_completion", "show_completion", "help", "log_format"}


def page() -> str:
    """The page as it should be."""
    root = typer.main.get_command(build())
    found = list(_commands("rollstream", root))
    summary = [
        "| `rollstream …` | does |\n|---|---|",
        *(
            f"| [`{name.partition(' ')[2]}`](#{_anchor(name)}) | {_first_sentence(one)} |"
            for name, one in found
        ),
    ]
    parts = [HEAD, "\n".join(summary) + "\n", *(_section(name, one) for name, one in found)]
    return "\n".join(parts)


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Each command that is no group, with its whole name, by name."""
    within = getattr(command, "commands", None)
    if within is None:
        yield name, command
        return
    for key in sorted(within):
        yield from _commands(f"{name} {key}", within[key])


def _section(name: str, command: Any) -> str:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [
        one
        for one in command.params
        if one.param_type_name == "option" and one.name not in _EVERYWHERE
    ]
    usage = [name, *(["[OPTIONS]"] if options else []), *map(_shown_argument, arguments)]
    lines = [f"## {name}", "", _paragraphs(command.help), "", "```text", " ".join(usage), "```", ""]
    lines += ["| | default | meaning |", "|---|---|---|"]
    lines += [f"| `{_shown_argument(one)}` | | {_cell(one.help)} |" for one in arguments]
    lines += [
        f"| {_shown_option(one)} | {_shown_default(one)} | {_cell(one.help)} |" for one in options
    ]
    example = (command.epilog or "").removeprefix("Example: ")
    return "\n".join([*lines, "", "Example:", "", "```text", example, "```", ""])


def _shown_argument(argument: Any) -> str:
    name = (argument.metavar or argument.name).strip("[]").upper()
    shown = f"{name}…" if argument.nargs == -1 else name
    return shown if argument.required else f"[{shown}]"


def _shown_option(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in option.opts)
    if option.is_flag:
        return names
    value = option.metavar or option.name.upper()
    return f"{names} `{value}`"


def _shown_default(option: Any) -> str:
    if option.required:
        return "required"
    if option.is_flag or option.default in (None, "", (), []) or callable(option.default):
        return ""
    value = option.default
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _first_sentence(command: Any) -> str:
    return re.split(r"[.:;] ", _cell(command.help), maxsplit=1)[0].rstrip(".")


def _paragraphs(text: str) -> str:
    parts = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(" ".join(part.split()) for part in parts)


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
