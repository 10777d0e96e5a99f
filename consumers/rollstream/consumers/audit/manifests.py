"""Compares manifests and roll-ups with the seal log, both read in its order: whatever was compared
is forgotten."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from rollstream.consumers.audit.ledger import Named
from rollstream.schemas.events import Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import BlobMissing, Blobs, CorruptFile
from rollstream.store.layout import (
    manifest_path,
    manifests_prefix,
    offset_in,
    rollup_in,
    rollups_prefix,
)
from rollstream.store.manifests import Manifest, is_manifest_of
from rollstream.store.rollups import NamedFiles, read_rollup

_REMEDY = "delete it; manifests say what it should"


class Manifests:
    """Those of one partition: whether each is there, and as its event says.

    The newest flush may lack its own. A manifest of an older flush may go once all files that the
    flush named are retired.
    """

    def __init__(self, blobs: Blobs, address: PartitionAddress) -> None:
        self._blobs = blobs
        self._address = address
        self._named = Named()
        self._lacks = -1  # The newest flush, where it has none.
        # Of paths, in the order of offsets; they are listed while the log is read. What is written
        # meanwhile is of newer flushes, or read by its path.
        paths = (blob.path for blob in blobs.list(manifests_prefix(address)))
        self._listed = (path for path in paths if offset_in(path) is not None)
        self._next = next(self._listed, None)

    def problems(
        self, offset: int, event: Flushed, *, needed: bool, retired: Callable[[], bool]
    ) -> Iterator[str]:
        """What is wrong with the manifests up to that of the next flush.

        Args:
            needed: False: all files of the flush were retired when the log was read.
            retired: returns whether they are retired by now; asked if there is no manifest.
        """
        yield from self._others_below(offset)
        if self._lacks >= 0:  # An owner projects one flush before it appends the next.
            self._named.add(str(self._lacks))
        self._lacks = -1
        path = manifest_path(self._address, offset)
        if self._next == path:
            self._next = next(self._listed, None)
        try:
            if not is_manifest_of(self._blobs.read(path), Manifest(self._address, offset, event)):
                yield f"{path} differs from its event in the seal log"
        except BlobMissing:
            if needed and not retired():
                self._lacks = offset

    def rest(self, name: str, read_to: int) -> Iterator[str]:
        """What is wrong with the others: one at or above ``read_to`` may be of a newer flush."""
        yield from self._others_below(read_to)
        if self._named.count:
            yield f"{name}: flushes without a manifest {self._named}"

    def _others_below(self, offset: int) -> Iterator[str]:
        """Manifests of what is no flush that counts."""
        end = manifest_path(self._address, offset)
        while self._next is not None and self._next < end:
            yield f"{self._next} is the manifest of a flush that does not count"
            self._next = next(self._listed, None)


class ComparedRollUps:
    """Those of one partition: damaged ones, and what says of a flush other files than it named."""

    def __init__(self, blobs: Blobs, address: PartitionAddress) -> None:
        self._blobs = blobs
        self._address = address
        # There is one for 64 manifests. By the offset of its first: it is read beside that flush.
        listed = {blob.path: rollup_in(blob.path) for blob in blobs.list(rollups_prefix(address))}
        self._unread = deque(sorted((one[1], path) for path, one in listed.items() if one))
        self._unnamed = [path for path, one in listed.items() if one is None]
        self._open: list[tuple[str, deque[NamedFiles]]] = []  # With what is not compared yet.

    def problems(self, offset: int, files: Sequence[str]) -> Iterator[str]:
        """What is wrong in them up to the next flush, which named these files."""
        yield from self._read_below(offset + 1)
        yield from self._compare(offset + 1, {offset: tuple(files)})

    def rest(self, read_to: int) -> Iterator[str]:
        """What is wrong with the others, below ``read_to``, and with blobs that are none."""
        yield from self._read_below(read_to)
        yield from self._compare(read_to, {})
        for path in self._unnamed:
            yield f"{path} has no name of a roll-up; delete it"

    def _read_below(self, offset: int) -> Iterator[str]:
        while self._unread and self._unread[0][0] < offset:
            _, path = self._unread.popleft()
            try:
                rollup = read_rollup(self._blobs.read(path))
            except BlobMissing:
                continue
            except CorruptFile as error:
                yield f"{path}: {error}; {_REMEDY}"
                continue
            if rollup.address != self._address:
                yield f"{path} is of {rollup.address}; {_REMEDY}"
            else:
                self._open.append((path, deque(rollup.manifests)))

    def _compare(self, below: int, flushes: dict[int, tuple[str, ...]]) -> Iterator[str]:
        left = []
        for path, manifests in self._open:
            while manifests and manifests[0].offset < below:
                manifest = manifests.popleft()
                if flushes.get(manifest.offset) != manifest.files:
                    yield f"{path} differs from the seal log, at flush {manifest.offset}; {_REMEDY}"
                    manifests.clear()
            if manifests:
                left.append((path, manifests))
        self._open = left
