"""Why members failed, in so few texts that they can be counted. Pure."""

from __future__ import annotations

import re
from collections import Counter

# Texts that differ in numbers alone, such as exit codes, before one stands for the others.
OF_A_KIND_MAX = 4
_WITH_DIGITS = re.compile(r"[\w.]*[0-9][\w.]*", re.ASCII)  # "12.31", "0x7f", "worker3".


def count_reason(counts: Counter[str], reason: str, members: int, most: int) -> None:
    """So many more members failed for a reason, in their producer's words, which may name times,
    offsets or ids. Of texts that differ in words with digits alone, ``OF_A_KIND_MAX`` stand as they
    are, fewer once half of ``most`` texts are counted; the others are one, with "#" for such words.
    Beyond ``most`` texts all others are counted under ""."""
    if reason not in counts:
        reason = _stands_for(counts, reason, most)
    counts[reason] += members


def _stands_for(counts: Counter[str], reason: str, most: int) -> str:
    kind = _kind(reason)
    if kind in counts:
        return kind
    if len(counts) >= most:
        return ""
    alike = sum(_kind(one) == kind for one in counts)
    return reason if len(counts) < most // 2 and alike < OF_A_KIND_MAX else kind


def _kind(reason: str) -> str:
    return _WITH_DIGITS.sub("#", reason)
