"""How a process that moves large buffers all its life keeps its memory."""

from __future__ import annotations

import ctypes
import gc

import pyarrow as pa

# What such a process holds has no cycles: at its usual pace the collector walks through all of it
# again and again and finds nothing.
_NEW_OBJECTS_BETWEEN_COLLECTIONS = 200_000
_KEPT_BYTES = 256 * 1024 * 1024  # Freed memory that is not given back.
_MMAP_FROM_BYTES = 1 << 30  # Larger buffers are mapped anew each time.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_memory_warm() -> None:
    """What one flush or batch frees, the next one finds warm: no page is asked for again and
    cleared again. For processes of our own; never in a user's.

    Source: mallopt(3); elsewhere than on glibc memory is kept as its allocator likes.
    """
    pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own gives back within moments.
    gc.set_threshold(_NEW_OBJECTS_BETWEEN_COLLECTIONS)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_FROM_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
