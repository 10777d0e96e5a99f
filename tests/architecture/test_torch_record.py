"""The record of what the tests that need PyTorch last passed with can be read."""

from __future__ import annotations

import re

from harness.source_tree import ROOT


def test_the_record_of_the_torch_tests_is_one_digest() -> None:
    """Not whether it is current: `make test-torch` sees to that, and CI runs it where it is not."""
    record = (ROOT / "tests" / "trainers" / "verified.txt").read_text(encoding="utf-8")
    assert re.fullmatch(r"sha256 [0-9a-f]{64}\n", record)
