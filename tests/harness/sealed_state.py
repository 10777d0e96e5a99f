"""What a ``SealFold`` holds, as a digest."""

from __future__ import annotations

import xxhash

from rollstream.streams.folds.remembered import Remembered
from rollstream.streams.folds.seal import SealFold


def digest_of(fold: SealFold) -> bytes:
    """Equal for equal states of one process, wherever the folds began."""
    state = xxhash.xxh3_128()
    counts = sorted((name, count) for name, count in fold.counts.items() if count)
    state.update(repr((fold.watermark, fold.now_ts, counts)).encode())
    state.update(repr((fold.retired, sorted(fold.requests))).encode())
    state.update(fold._above.settled.tobytes())
    state.update(fold._above.counts.tobytes())
    state.update(fold._above.unread.tobytes())
    for offset, newest, settled, _ in fold._flushes:
        # Not how many were settled before: folds that began elsewhere have not counted these.
        state.update(repr((offset, newest, fold._settled - settled)).encode())
    state.update(packed(fold._remembered))
    return state.digest()


def packed(remembered: Remembered) -> bytes:
    """Equal for the same segments of the same flushes, counted from the oldest remembered."""
    hashes, flushes = remembered._joined()
    return hashes.tobytes() + (flushes - remembered._first).tobytes()
