"""The oldest offset that is not settled."""

from __future__ import annotations

from collections.abc import Iterable


class Watermark:
    """Every offset below ``low`` is settled; those above it are kept as a set.

    The set holds at most as many offsets as lie between the watermark and the position.
    """

    def __init__(self, low: int) -> None:
        self.low = low
        self._above: set[int] = set()

    def settle(self, offsets: Iterable[int]) -> None:
        """Each offset once, none below the watermark."""
        for offset in offsets:
            assert offset >= self.low, (offset, self.low)
            assert offset not in self._above, f"offset {offset} is settled twice"
            self._above.add(offset)
        while self.low in self._above:
            self._above.remove(self.low)
            self.low += 1

    def after(self, offsets: Iterable[int]) -> int:
        """Where the watermark would stand once these were settled as well."""
        more = set(offsets)
        low = self.low
        while low in self._above or low in more:
            low += 1
        return low
