"""Keeps freed heap memory mapped, for processes that allocate large buffers all the time."""

from __future__ import annotations

import ctypes
import gc

import pyarrow as pa

# Such a process holds many objects and few cycles: at the default pace the collector would walk
# all of them again and again and find nothing.
_NEW_OBJECTS_BETWEEN_COLLECTIONS = 200_000
_KEPT_BYTES = 256 * 1024 * 1024  # Freed memory that is not given back to the system.
# Larger buffers are mapped anew each time. The second value is the most that an older glibc takes.
_MMAP_FROM_BYTES = (1 << 30, 32 * 1024 * 1024)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_memory_warm() -> None:
    """Sets Arrow's pool, malloc and the garbage collector of this process so that large buffers are
    not page-faulted in again for each flush or batch: 4.3 % more processor time a rollout
    (docs/decisions/0004). For processes of our own, not for a user's.

    On an older glibc buffers above 32 MiB are mapped anew each time, as without this call; without
    glibc only Arrow's pool and the collector are set.

    Source: mallopt(3). ``M_MMAP_THRESHOLD`` is to be 32 MiB at most (512 KiB on 32 bits): a glibc
    that checks it (HEAP_MAX_SIZE / 2 in its malloc.c) returns 0 for more; 2.36 takes 1 GiB. Setting
    ``M_TRIM_THRESHOLD`` stops glibc from raising the other threshold by itself, up from 128 KiB, so
    it is left alone where the other cannot be set.
    """
    pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own pool soon gives memory back.
    gc.set_threshold(_NEW_OBJECTS_BETWEEN_COLLECTIONS)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    if any(mallopt(_M_MMAP_THRESHOLD, threshold) for threshold in _MMAP_FROM_BYTES):
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
