"""What the docs call done is proved by a test, and what tests prove is in the docs."""

from __future__ import annotations

import ast
import re
from collections import defaultdict

from harness.source_tree import ROOT, parsed

ROW = re.compile(r"^\| ([A-F]\d+) \| (done|partly|planned) \| (.+) \|$")
INVARIANT = re.compile(r"^\| (I\d+) \| (.+) \|$")


def features() -> dict[str, str]:
    """Id to state, as docs/features.md has them."""
    text = (ROOT / "docs" / "features.md").read_text(encoding="utf-8")
    rows = [ROW.match(line) for line in text.splitlines()]
    return {row[1]: row[2] for row in rows if row}


def invariants() -> set[str]:
    """Ids of docs/guarantees.md."""
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    rows = [INVARIANT.match(line) for line in text.splitlines()]
    return {row[1] for row in rows if row}


def proofs() -> dict[str, list[str]]:
    """Id to the lines of the markers that name it."""
    found = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if ast.unparse(node.func) != "pytest.mark.proves":
                continue
            for argument in node.args:
                line = f"{path.relative_to(ROOT)}:{node.lineno}"
                assert isinstance(argument, ast.Constant), f"{line}: name ids as plain strings"
                found[str(argument.value)].append(line)
    return dict(found)


def test_docs_have_a_row_for_every_id() -> None:
    counts = {"A": 24, "B": 7, "C": 8, "D": 6, "E": 5, "F": 23}
    expected = {f"{part}{n}" for part, last in counts.items() for n in range(1, last + 1)}
    assert set(features()) == expected
    assert invariants() == {f"I{n}" for n in range(1, 11)}


def test_every_proof_names_a_row_of_the_docs() -> None:
    known = set(features()) | invariants()
    unknown = {mark: lines for mark, lines in proofs().items() if mark not in known}
    assert unknown == {}


def test_what_is_called_done_is_proved_by_a_test() -> None:
    done = {name for name, state in features().items() if state == "done"}
    assert done, "docs/features.md calls nothing done; is its table as this test reads it?"
    assert done - set(proofs()) == set()
