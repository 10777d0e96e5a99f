"""The documentation as data: tables and snippets of its pages."""

from __future__ import annotations

import re

from harness.source_tree import ROOT

_FIRST_CELL = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)


def page(name: str) -> str:
    """The text of a page, by its path under ``docs/``."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def section(name: str, title: str) -> str:
    """What stands under ``## title``, to the next heading of that level."""
    parts = re.split(r"^## (.+)$", page(name), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[title]


def rows(name: str, title: str) -> list[str]:
    """The first cell of each row of a section's tables, where it is written as code."""
    return _FIRST_CELL.findall(section(name, title))


def snippets(name: str, language: str) -> list[str]:
    """The fenced blocks of a page in that language, in their order."""
    fence = re.compile(rf"^```{language}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return fence.findall(page(name))
