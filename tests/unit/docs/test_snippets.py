"""Python that pages show: each snippet is Python, and names nothing of a library unimported."""

from __future__ import annotations

import ast
from doctest import DocTestParser
from itertools import pairwise

import pytest

import rollstream.consumers
import rollstream.producers
import rollstream.sampler
from harness.pages import snippets
from harness.source_tree import ROOT

GUIDES = sorted(path.name for path in (ROOT / "docs" / "guides").glob("*.md"))
PAGES = [*(f"guides/{name}" for name in GUIDES), "index.md", "../README.md"]
PUBLISH = frozenset({"publish", "append_to_group", "turn"})
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


def takes_a_policy(node: ast.Assign) -> bool:
    match node.value:
        case ast.Call(ast.Attribute(attr="policy")):
            return True
    return False


def publishes_under_one(node: ast.Call) -> bool:
    match node:
        case ast.Call(ast.Attribute(attr=called), keywords=given) if called in PUBLISH:
            return any(one.arg in (None, "policy") for one in given)
    return False


def loads_before_it_publishes(tree: ast.AST) -> bool:
    """Whether weights are loaded in the statement after each that takes a policy, and before the
    first that publishes under one."""
    loaded = []
    for node in ast.walk(tree):
        for taken, after in pairwise([*ast.iter_child_nodes(node), None]):
            if isinstance(taken, ast.Assign) and takes_a_policy(taken):
                if after is None or "(policy.weights)" not in ast.unparse(after):
                    return False
                loaded.append(taken.lineno)
    published = [
        one.lineno
        for one in ast.walk(tree)
        if isinstance(one, ast.Call) and publishes_under_one(one)
    ]
    return not published or min(loaded, default=min(published)) < min(published)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_loads_the_weights_of_the_policy_that_it_publishes_under(page: str) -> None:
    for snippet in snippets(page, "python"):
        assert loads_before_it_publishes(ast.parse(snippet)), snippet


def test_an_example_of_the_producer_loads_the_weights_that_it_publishes_under() -> None:
    examples = DocTestParser().get_examples(rollstream.producers.RolloutProducer.__doc__ or "")
    assert examples
    for example in examples:
        assert loads_before_it_publishes(ast.parse(example.source)), example.source
