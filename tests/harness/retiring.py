"""Events about the life of files, from a few arguments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rollstream.schemas.events import Requested, Retired, RetiredFile


def requested(older_than_s: float | None = 0.0, *, kind: str = "retain", **caps: Any) -> Requested:
    """Somebody asks."""
    return Requested(
        kind=kind,
        older_than_us=-1 if older_than_s is None else round(older_than_s * 1e6),
        requested_by="test",
        requested_ts=0,
        **caps,
    )


def retired(
    epoch: int,
    nonce: str,
    files: Iterable[tuple[int, str]] = (),
    *,
    previous: int = -1,
    request: int = -1,
    more: bool = False,
) -> Retired:
    """Files, as (offset of the flush, path), of ten bytes each."""
    return Retired(
        epoch=epoch,
        nonce=nonce,
        now_ts=0,
        previous=previous,
        request=request,
        more=more,
        files=tuple(RetiredFile(offset=at, path=path, size=10) for at, path in files),
        detail="",
    )
