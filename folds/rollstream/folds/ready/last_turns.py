"""In which turn each key was served last. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

import numpy as np

RECENT_MAX = 16_384  # Keys beside the sorted ones, and an eighth of those: about 150 bytes each.


class LastTurns:
    """Turns from 1 to 2**32 - 1 by key, an integer from 0 to 2**64 - 1, of each the greatest; 12
    bytes a key that was not served lately. Serving costs the same among ten and a million."""

    def __init__(self) -> None:
        self._recent: dict[int, int] = {}  # Where a key is in both, the greater turn counts.
        self._keys = array("Q")  # Rising.
        self._turns = array("I")

    def get(self, key: int) -> int:
        """0: it was never served."""
        recent = self._recent.get(key, 0)
        at = bisect_left(self._keys, key)
        known = at < len(self._keys) and self._keys[at] == key
        return max(recent, self._turns[at]) if known else recent

    def serve(self, served: Iterable[tuple[int, int]]) -> None:
        """Keys, each served in this turn."""
        recent = self._recent
        for key, turn in served:
            if turn > recent.get(key, 0):
                recent[key] = turn
        if len(recent) > RECENT_MAX + len(self._keys) // 8:
            self._sort_in()

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Keys with their turns, by rising key."""
        self._sort_in()
        return zip(self._keys, self._turns, strict=True)

    def _sort_in(self) -> None:
        if not self._recent:
            return
        count = len(self._recent)
        new_keys = np.fromiter(self._recent, np.uint64, count)
        new_turns = np.fromiter(self._recent.values(), np.uint32, count)
        order = np.argsort(new_keys)
        new_keys, new_turns = new_keys[order], new_turns[order]
        keys = np.frombuffer(self._keys, np.uint64)
        turns = np.frombuffer(self._turns, np.uint32).copy()
        places = np.searchsorted(keys, new_keys)
        known = np.searchsorted(keys, new_keys, "right") > places
        again = places[known]
        turns[again] = np.maximum(turns[again], new_turns[known])
        self._keys = array("Q", np.insert(keys, places[~known], new_keys[~known]).tobytes())
        self._turns = array("I", np.insert(turns, places[~known], new_turns[~known]).tobytes())
        self._recent = {}
