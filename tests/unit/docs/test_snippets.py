"""Python that pages show: each snippet is Python, and names nothing of a library unimported."""

from __future__ import annotations

import ast

import pytest

import rollstream.consumers
import rollstream.producers
import rollstream.sampler
from harness.pages import snippets
from harness.source_tree import ROOT

GUIDES = sorted(path.name for path in (ROOT / "docs" / "guides").glob("*.md"))
PAGES = [*(f"guides/{name}" for name in GUIDES), "api.md", "../README.md"]
MODULES = (rollstream.consumers, rollstream.producers, rollstream.sampler)
ABBREVIATED = {"np", "pa", "pc", "pd", "pl", "duckdb", "json", "base64", "torch"}
LIBRARIES = ABBREVIATED.union(*(module.__all__ for module in MODULES))


def imported(tree: ast.AST) -> set[str]:
    found = [alias for node in ast.walk(tree) for alias in getattr(node, "names", [])]
    return {alias.asname or alias.name for alias in found if isinstance(alias, ast.alias)}


def read(tree: ast.AST) -> set[str]:
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return {name.id for name in names if isinstance(name.ctx, ast.Load)}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_imports_what_its_snippets_take_from_libraries(page: str) -> None:
    known: set[str] = set()
    for snippet in snippets(page, "python"):
        tree = ast.parse(snippet)
        known |= imported(tree)
        assert not LIBRARIES.intersection(read(tree)) - known, snippet
