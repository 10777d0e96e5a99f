"""Words that are retired (``harness.retired_words``) are nowhere: not in names, texts, or docs."""

from __future__ import annotations

from pathlib import Path

from harness.retired_words import HERE, retired, uses
from harness.source_tree import ROOT

KINDS = ("*.py", "*.md", "*.avsc", "*.toml", "*.yml", "*.yaml", "Makefile", "Dockerfile", "run")
NOT_OURS = {
    ".venv",
    ".venv-torch",
    ".git",
    "build",
    "dist",
    "site",
    "runs",
    ".hypothesis",
    "node_modules",
}


def texts() -> list[Path]:
    """Every file that people read, but those that have to name what is retired."""
    found = {path for kind in KINDS for path in ROOT.rglob(kind) if path.is_file()}
    return sorted(
        path
        for path in found - {HERE, Path(__file__)}
        if not NOT_OURS.intersection(path.relative_to(ROOT).parts)
    )


def test_retired_words_are_found_in_a_text() -> None:
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
    paths = [str(path.relative_to(ROOT)) for path in texts()]
    assert [use for path in paths for use in uses(path, path)] == []
