"""The words and names that ``docs/glossary.md`` retires."""

from __future__ import annotations

import re
from functools import cache

from harness.source_tree import ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
FENCE = "```"
BETWEEN = "->"  # A retired pattern, and what is written instead.


@cache
def retired() -> tuple[re.Pattern[str], ...]:
    """The patterns of the glossary's last block."""
    last = GLOSSARY.read_text(encoding="utf-8").rstrip().split(FENCE)[-2]
    lines = [line for line in last.splitlines()[1:] if line.strip()]
    return tuple(re.compile(line.split(BETWEEN)[0].strip()) for line in lines)


def uses(text: str, where: str) -> list[str]:
    """One line for each retired word in the text."""
    return [
        f"{where}:{number}: {match.group()!r} in {line.strip()!r}"
        for number, line in enumerate(text.splitlines(), start=1)
        for pattern in retired()
        if (match := pattern.search(line)) is not None
    ]
