"""How many examples a property is tried with."""

from __future__ import annotations

from hypothesis import settings

PROFILE = "rollstream"
# CI draws new ones each time: what each run leaves out, others try.
SHARE = "share"
SHARE_EXAMPLES = 34
_DEFAULT_EXAMPLES = 100  # Hypothesis' own.


def examples(count: int) -> int:
    """``count``, or the share of it that the profile tries of every property."""
    of_all: int = settings().max_examples
    return max(1, count * of_all // _DEFAULT_EXAMPLES)
