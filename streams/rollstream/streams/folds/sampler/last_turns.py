"""In which turn each key was served last. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

RECENT_MAX = 16_384  # Keys beside the sorted ones, and an eighth of those: about 150 bytes each.


class LastTurns:
    """Turns from 1 to 2**32 - 1 by key, an integer from 0 to 2**64 - 1; 12 bytes a key that was
    not marked lately. Setting one costs the same among ten and among a million."""

    def __init__(self) -> None:
        self._recent: dict[int, int] = {}  # These count where a key is in both.
        self._keys = array("Q")  # Rising.
        self._turns = array("I")

    def get(self, key: int) -> int:
        """0: it was never served."""
        turn = self._recent.get(key)
        if turn is not None:
            return turn
        at = bisect_left(self._keys, key)
        return self._turns[at] if at < len(self._keys) and self._keys[at] == key else 0

    def set(self, key: int, turn: int) -> None:
        """The key was served in this turn."""
        self._recent[key] = turn
        if len(self._recent) > RECENT_MAX + len(self._keys) // 8:
            self._sort_in()

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Keys with their turns, by rising key."""
        self._sort_in()
        return zip(self._keys, self._turns, strict=True)

    def _sort_in(self) -> None:
        if not self._recent:
            return
        count = len(self._recent)
        keys = np.concatenate((np.fromiter(self._recent, np.uint64, count), self._keys))
        turns = np.fromiter(self._recent.values(), np.uint32, count)
        # The first of each key is kept: the recent ones come first.
        keys, firsts = np.unique(keys, return_index=True)
        turns = np.concatenate((turns, self._turns))[firsts]
        self._keys, self._turns = array("Q", keys.tobytes()), array("I", turns.tobytes())
        self._recent = {}
