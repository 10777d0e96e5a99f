"""Python's garbage collector, where much is made that stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """In the block nothing looks for reference cycles, in the whole process: what is made there and
    stays is not walked again and again. Whatever no cycle holds is freed as ever.

    For blocks with a deadline: the cycles that others leave meanwhile are found after it. Where the
    collector was disabled before, it stays so.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
