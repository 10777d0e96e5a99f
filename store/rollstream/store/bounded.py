"""A store whose calls end in time, for callers that do not watch it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.config.store import StoreConfig
from rollstream.runtime.deadline import Deadline
from rollstream.store.blobs import Blobs
from rollstream.store.calls import CalledBlobs
from rollstream.store.in_time import in_time
from rollstream.store.layout import ROOT_ID
from rollstream.store.open import open_store

T = TypeVar("T")


class BoundedBlobs(CalledBlobs):
    """Another store, which has no time-outs of its own. A call that takes longer than ``timeout_s``
    raises ``StoreHangs``. Its calls come one after the other.

    Args:
        clock: for errors, which name the time since when a call hangs.
    """

    def __init__(self, inner: Blobs, timeout_s: float, clock: Clock) -> None:
        super().__init__(inner)
        self._root = inner.address("")
        self._timeout_s = timeout_s
        self._clock = clock

    def _call(self, name: str, path: str, run: Callable[[], T]) -> T:
        deadline = Deadline(self._timeout_s, self._clock)
        return in_time(run, self._root, deadline, f"{name} {path}".strip())


def open_bounded(
    root: str | Path | StoreConfig,
    *,
    timeout_s: float | None = None,
    clock: Clock | None = None,
    opens: Callable[[], Blobs] | None = None,
) -> Blobs:
    """Opens the store below a root. None of its calls lasts longer than ``store.timeout_s``.

    Args:
        root: as for ``open_store``.
        timeout_s: holds instead if it is shorter.
        opens: opens it instead of ``open_store``.

    Raises:
        StoreHangs: the root does not answer in time.
        UnsupportedRoot, StoreError: as ``open_store``.
    """
    clock = clock or SystemClock()
    config = root if isinstance(root, StoreConfig) else StoreConfig(root=str(root))
    within_s = config.timeout_s if timeout_s is None else min(timeout_s, config.timeout_s)
    ask = opens or (lambda: open_store(root))
    blobs = in_time(ask, config.root, Deadline(within_s, clock), "open")
    return bounded(blobs, within_s, clock)


def bounded(blobs: Blobs, timeout_s: float, clock: Clock) -> Blobs:
    """The store with calls that end in time. One that is not mounted has its own time-outs."""
    is_mounted = blobs.local_path(ROOT_ID) is not None
    return BoundedBlobs(blobs, timeout_s, clock) if is_mounted else blobs
