"""What plans know of flushes, so that each manifest is opened once."""

from __future__ import annotations

import zlib

import orjson

from rollstream.consumers.retention.plan import FileGroups, FlushFiles

SPAN = 1024  # Offsets that are compressed together: paths that are alike take a tenth.


class KnownFlushes:
    """The flushes of a partition with their files, compressed: about 50 bytes a flush. They are
    looked up by rising offset; any order is right, and slower."""

    def __init__(self) -> None:
        self._spans: dict[int, bytes] = {}
        self._at = -1  # The span that is open.
        self._open: dict[int, FlushFiles] = {}
        self._changed = False
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, offset: int) -> bool:
        return self.get(offset) is not None

    def get(self, offset: int) -> FlushFiles | None:
        """The flush at an offset; None: it is not known."""
        return self._span_of(offset).get(offset)

    def add(self, flush: FlushFiles) -> None:
        """Knows a flush from now on."""
        span = self._span_of(flush.offset)
        self._count += flush.offset not in span
        span[flush.offset] = flush
        self._changed = True

    def forget(self, offset: int) -> None:
        """Knows it no more, if it did."""
        if self._span_of(offset).pop(offset, None) is not None:
            self._count -= 1
            self._changed = True

    def _span_of(self, offset: int) -> dict[int, FlushFiles]:
        if self._at != (at := offset // SPAN):
            if self._changed:
                self._spans.pop(self._at, None)
                if self._open:
                    self._spans[self._at] = _packed(self._open)
            self._at, self._changed = at, False
            packed = self._spans.get(at)
            self._open = {} if packed is None else _unpacked(packed)
        return self._open


def _packed(flushes: dict[int, FlushFiles]) -> bytes:
    rows = [
        (offset, flush.sealed_ts, [tuple(file) for file in flush.files])
        for offset, flush in flushes.items()
    ]
    return zlib.compress(orjson.dumps(rows), 1)


def _unpacked(data: bytes) -> dict[int, FlushFiles]:
    return {
        offset: FlushFiles(
            offset,
            sealed_ts,
            tuple(
                FileGroups(path, size, tuple(groups), version, stored)
                for path, size, groups, version, stored in files
            ),
        )
        for offset, sealed_ts, files in orjson.loads(zlib.decompress(data))
    }
