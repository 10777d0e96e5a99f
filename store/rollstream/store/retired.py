"""Which files of a partition are retired, as blobs: what is left of the older flushes, so that
readers without Kafka leave retired files out and open as much as there is, not as there ever was.

There is one blob for each ``Retired`` event with files, named by its offset; the newest one counts.
It follows from the seal log up to that event alone, so that owners who follow one another, and a
zombie beside one, write the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import NamedTuple

import orjson

import rollstream
from rollstream.schemas.digest import checksum
from rollstream.schemas.events import Flushed, Retired
from rollstream.schemas.ids import PartitionAddress
from rollstream.store.blobs import Blobs
from rollstream.store.errors import BlobMissing, CorruptFile, NewerFile
from rollstream.store.layout import (
    RETIRED,
    manifests_prefix,
    offset_in,
    retired_path,
    retired_prefix,
)

_SCHEMA = "retired.v1"


class NamedFile(NamedTuple):
    """A file that the flush at ``offset`` named; under ``groups/`` or ``incomplete/``."""

    offset: int
    path: str


class RetiredFiles(NamedTuple):
    """What is retired of a partition.

    Attributes:
        offset: of the newest event that retired files; -1: none did.
        below: all files of flushes before this offset are retired, but for those that are kept.
        kept: these, sorted.
        newest: the files that this event retired.
    """

    address: PartitionAddress
    offset: int = -1
    below: int = 0
    kept: tuple[NamedFile, ...] = ()
    newest: tuple[NamedFile, ...] = ()

    def has(self, file: NamedFile) -> bool:
        """Whether the file, which a flush named, is retired."""
        return file.offset < self.below and file not in self.kept

    def after(
        self, offset: int, event: Retired, flushes: Iterable[tuple[int, Flushed]]
    ) -> RetiredFiles:
        """What is retired after the next event. Pure.

        Args:
            flushes: those from ``below`` on, with their offsets, up to the newest that it names.
        """
        newest = tuple(sorted(NamedFile(file.offset, file.path) for file in event.files))
        named = [*self.kept, *(file for flush in flushes for file in files_of(*flush))]
        gone = {*newest}
        below = max(self.below, newest[-1].offset + 1)
        kept = tuple(sorted(file for file in named if file not in gone))
        return RetiredFiles(self.address, offset, below, kept, newest)


def files_of(offset: int, event: Flushed) -> list[NamedFile]:
    """All files that a flush named."""
    return [NamedFile(offset, file.path) for file in (*event.files, *event.incomplete)]


def encode_retired(retired: RetiredFiles) -> bytes:
    """Two lines: the checksum of the second, which is JSON. Equal ones give equal bytes."""
    content = {"schema": _SCHEMA, **retired.address._asdict(), **retired._asdict()}
    del content["address"]
    body = orjson.dumps(content, default=list)
    return b"%s\n%s\n" % (checksum(body).encode(), body)


def read_retired(data: bytes) -> RetiredFiles:
    """Decodes it.

    Raises:
        CorruptFile: the bytes are damaged. NewerFile: a newer version of Rollstream wrote them.
    """
    first, _, rest = data.partition(b"\n")
    body = rest.removesuffix(b"\n")
    if first != checksum(body).encode():
        raise CorruptFile(
            f"does not say which files are retired: its checksum differs, in {data[:80]!r}; delete "
            "it, and start a sealer of its partition anew, which writes it again"
        )
    content = orjson.loads(body)
    if content["schema"] != _SCHEMA:
        raise NewerFile(
            f"retired files of schema {content['schema']!r}; rollstream {rollstream.__version__} "
            f"reads {_SCHEMA}: upgrade this process to the version of the sealers"
        )
    return RetiredFiles(
        PartitionAddress(content["environment"], content["generation"], content["partition"]),
        content["offset"],
        content["below"],
        tuple(NamedFile(*file) for file in content["kept"]),
        tuple(NamedFile(*file) for file in content["newest"]),
    )


def load_retired(blobs: Blobs, path: str) -> RetiredFiles:
    """Reads one.

    Raises:
        BlobMissing: there is none. CorruptFile, NewerFile: it cannot be read; the error names it.
    """
    try:
        return read_retired(blobs.read(path))
    except (CorruptFile, NewerFile) as error:
        raise type(error)(f"{path}: {error}") from error


def retired_offsets(blobs: Blobs, address: PartitionAddress) -> list[int]:
    """Of the partition's blobs, which are those of events, rising."""
    offsets = (offset_in(blob.path) for blob in blobs.list(retired_prefix(address)))
    return [offset for offset in offsets if offset is not None]


def retired_of(blobs: Blobs, address: PartitionAddress) -> RetiredFiles:
    """What is retired of a partition; nothing where there is no blob.

    Raises:
        CorruptFile, NewerFile: the newest one cannot be read.
    """
    while offsets := retired_offsets(blobs, address):
        try:
            return load_retired(blobs, retired_path(address, offsets[-1]))
        except BlobMissing:
            continue  # A newer one was written since they were listed.
    return RetiredFiles(address)


def all_retired(blobs: Blobs) -> Mapping[str, RetiredFiles]:
    """What is retired of every partition of which anything is, by ``manifests_prefix``. Opens one
    blob a partition.

    Raises:
        CorruptFile, NewerFile: as ``retired_of``.
    """
    found: dict[str, RetiredFiles] = {}
    listed = [b.path for b in blobs.list(f"{RETIRED}/") if offset_in(b.path) is not None]
    for _, paths in groupby(listed, key=lambda path: path.rpartition("/")[0]):
        newest = list(paths)[-1]
        try:
            retired = load_retired(blobs, newest)
        except BlobMissing:
            return all_retired(blobs)  # Superseded since they were listed.
        found[manifests_prefix(retired.address)] = retired
    return found
