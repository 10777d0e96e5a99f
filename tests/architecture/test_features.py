"""What the docs call done is proved by a test, and what tests prove is in the docs."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TypeGuard

from harness.source_tree import ROOT, parsed

ROW = re.compile(r"^\| ([A-F]\d+) \| (done|partly|planned) \| (.+) \|$")
INVARIANT = re.compile(r"^\| (I\d+) \| (.+) \|$")


def features() -> dict[str, str]:
    """Id to state, as docs/developers/rows.md has them."""
    text = (ROOT / "docs" / "developers" / "rows.md").read_text(encoding="utf-8")
    rows = [ROW.match(line) for line in text.splitlines()]
    return {row[1]: row[2] for row in rows if row}


def invariants() -> set[str]:
    """Ids of docs/guarantees.md."""
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    rows = [INVARIANT.match(line) for line in text.splitlines()]
    return {row[1] for row in rows if row}


def proofs() -> dict[str, list[str]]:
    """Id to the lines of the markers of collected tests that name it."""
    found = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for marker in markers(of_tests(parsed(path).body)):
            for argument in marker.args:
                line = f"{path.relative_to(ROOT)}:{marker.lineno}"
                assert isinstance(argument, ast.Constant), f"{line}: name ids as plain strings"
                found[str(argument.value)].append(line)
    return dict(found)


def of_tests(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """What pytest takes markers of a module's or class's tests from, where it has any."""
    tests = [node for node in body if is_test(node)]
    for test in tests:
        yield from test.decorator_list
        if isinstance(test, ast.ClassDef):
            yield from of_tests(test.body)
    for node in body if tests else ():
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            yield node.value


def is_test(node: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Whether pytest collects it, by its name."""
    if isinstance(node, ast.ClassDef):
        return node.name.startswith("Test")
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name.startswith("test")
    return False


def markers(nodes: Iterable[ast.AST]) -> Iterator[ast.Call]:
    """The markers of proofs within."""
    for node in nodes:
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.proves":
                yield call


def test_a_marker_of_what_is_no_test_proves_nothing() -> None:
    module = ast.parse(
        """
@pytest.mark.proves("A1")
def helper(): ...
@pytest.mark.proves("A2")
def test_it(): ...
class TestMore:
    pytestmark = [pytest.mark.proves("A3")]
    @pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.proves("A4"))])
    async def test_it(self, n): ...
"""
    )
    found = [ast.unparse(call.args[0]) for call in markers(of_tests(module.body))]
    assert sorted(found) == ["'A2'", "'A3'", "'A4'"]


def test_every_marker_is_of_a_collected_test() -> None:
    stray = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        tree = parsed(path)
        tests = of_tests(tree.body) if path.name.startswith("test_") else ()
        counted = {id(marker) for marker in markers(tests)}
        stray += [
            f"{path.relative_to(ROOT)}:{marker.lineno}"
            for marker in markers([tree])
            if id(marker) not in counted
        ]
    assert stray == []


def test_docs_have_a_row_for_every_id() -> None:
    counts = {"A": 24, "B": 7, "C": 8, "D": 6, "E": 5, "F": 25}
    expected = {f"{part}{n}" for part, last in counts.items() for n in range(1, last + 1)}
    assert set(features()) == expected
    assert invariants() == {f"I{n}" for n in range(1, 11)}


def test_every_proof_names_a_row_of_the_docs() -> None:
    known = set(features()) | invariants()
    unknown = {mark: lines for mark, lines in proofs().items() if mark not in known}
    assert unknown == {}


def test_what_is_called_done_is_proved_by_a_test() -> None:
    done = {name for name, state in features().items() if state == "done"}
    assert done, "docs/developers/rows.md calls nothing done; is its table as this test reads it?"
    assert done - set(proofs()) == set()
