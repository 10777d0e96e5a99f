"""How a process that moves large buffers all its life keeps its memory."""

from __future__ import annotations

import ctypes
import gc

import pyarrow as pa

# What such a process holds has no cycles: at its usual pace the collector walks through all of it
# again and again and finds nothing.
_NEW_OBJECTS_BETWEEN_COLLECTIONS = 200_000
_KEPT_BYTES = 256 * 1024 * 1024  # Freed memory that is not given back.
# Larger buffers are mapped anew each time. The second is the most that an older glibc takes.
_MMAP_FROM_BYTES = (1 << 30, 32 * 1024 * 1024)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_memory_warm() -> None:
    """What one flush or batch frees, the next one finds warm: no page is asked for again and
    cleared again. For processes of our own; never in a user's.

    Elsewhere than on glibc memory is kept as its allocator likes; on an older glibc buffers beyond
    32 MiB are mapped anew each time, as they would be without this.

    Source: mallopt(3). ``M_MMAP_THRESHOLD`` is to be 32 MiB at most (512 KiB on 32 bits): a glibc
    that checks it (HEAP_MAX_SIZE / 2 in its malloc.c) returns 0 for more; 2.36 takes 1 GiB. To set
    ``M_TRIM_THRESHOLD`` stops glibc from raising the other by itself, up from 128 KiB: it is left
    alone where the other cannot be set.
    """
    pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own gives back within moments.
    gc.set_threshold(_NEW_OBJECTS_BETWEEN_COLLECTIONS)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    if any(mallopt(_M_MMAP_THRESHOLD, threshold) for threshold in _MMAP_FROM_BYTES):
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
