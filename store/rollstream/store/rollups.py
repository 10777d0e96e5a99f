"""Roll-ups: what many manifests name in one blob, so that finding the visible files opens few.

A roll-up is a hint. Which manifests there are is known from their listing alone; a roll-up saves
opening those that it holds, where their sizes are those of the listing. A damaged one is passed
over, and deleting any of them harms nothing.

One of level 1 holds ``ROLLED_TOGETHER`` manifests of a partition that follow one another, and one
of level 2 as many of level 1. So whoever lists a partition opens one blob for each 4,096 manifests,
about 1 MB, and some 130 more: those of the newest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import orjson

from rollstream.schemas.digest import checksum
from rollstream.schemas.events import Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.store.blobs import Blobs, create_or_compare
from rollstream.store.errors import BlobMissing, CorruptFile, StoreError
from rollstream.store.layout import (
    GROUPS,
    MANIFESTS,
    ROLLUPS,
    address_in,
    manifest_path,
    manifests_prefix,
    offset_in,
    rollup_in,
    rollup_path,
    rollups_prefix,
)
from rollstream.store.manifests import paths_named, read_manifest
from rollstream.store.retired import RetiredFiles, all_retired

ROLLED_TOGETHER = 64
_LEVEL_MAX = 2  # One of level 3 would be 64 MB.
_SCHEMA = "rollup.v1"


class NamedFiles(NamedTuple):
    """A manifest's offset, its size in bytes, and the files under ``groups/`` that it names."""

    offset: int
    size: int
    files: tuple[str, ...]


class VisibleFile(NamedTuple):
    """A file that is part of the data, and the flush that named it."""

    address: PartitionAddress
    offset: int
    path: str


class RollUp(NamedTuple):
    """Manifests of one partition that follow one another, in the order of the log."""

    address: PartitionAddress
    manifests: tuple[NamedFiles, ...]


class _Span(NamedTuple):
    """From the first to the last manifest of a roll-up, by offset; a manifest is both."""

    first: int
    last: int


class RollUps:
    """Writes the roll-ups of one partition. Only the owner of its seal log adds to it.

    Owners that follow one another write the same bytes.

    Args:
        address: of the partition.
    """

    def __init__(self, blobs: Blobs, address: PartitionAddress) -> None:
        self._blobs = blobs
        self._address = address
        self._levels: list[list[_Span]] = []  # What no roll-up of a higher level holds.
        self._named: dict[int, NamedFiles] = {}  # Of manifests that were added and not rolled up.

    def add(self, offset: int, event: Flushed, size: int) -> None:
        """Writes the roll-ups that are due after the newest manifest of the partition, of this
        size in bytes.

        Raises:
            StoreError: a roll-up was not written; it will be after as many further manifests.
        """
        try:
            self._add(offset, event, size)
        except StoreError:
            self._levels.clear()
            self._named.clear()
            raise

    def _add(self, offset: int, event: Flushed, size: int) -> None:
        files = tuple(file.path for file in event.files)
        self._named[offset] = NamedFiles(offset, size, files)
        if self._levels:
            self._levels[0].append(_Span(offset, offset))
        elif len(self._named) >= ROLLED_TOGETHER:
            self._levels = _listed(self._blobs, self._address)
        for level, spans in enumerate(self._levels[:_LEVEL_MAX]):
            while len(spans) >= ROLLED_TOGETHER:
                whole = self._write(level, spans[:ROLLED_TOGETHER])
                del spans[:ROLLED_TOGETHER]
                if level + 1 < _LEVEL_MAX:  # The next level is looked at next.
                    self._levels[level + 1].append(whole)

    def _write(self, level: int, parts: Sequence[_Span]) -> _Span:
        blobs, address = self._blobs, self._address
        manifests: list[NamedFiles] = []
        for first, last in parts:
            if level:
                path = rollup_path(address, level, first, last)
                manifests += read_rollup(blobs.read(path)).manifests
            else:
                manifests.append(self._named.get(first) or _read_named(blobs, address, first))
        whole = _Span(parts[0].first, parts[-1].last)
        data = encode_rollup(RollUp(address, tuple(manifests)))
        create_or_compare(blobs, rollup_path(address, level + 1, *whole), data)
        if not level:
            for first, _ in parts:
                self._named.pop(first, None)
        return whole


def rolled_up(blobs: Blobs, retired: Mapping[str, RetiredFiles]) -> Mapping[str, NamedFiles]:
    """What roll-ups say of manifests, by the manifests' paths. Opens none that another holds, and
    none of flushes all of whose files are retired."""
    known: dict[str, NamedFiles] = {}
    listed = [blob.path for blob in blobs.list(f"{ROLLUPS}/")]
    for folder, paths in groupby(listed, key=lambda path: path.rpartition("/")[0]):
        named = [(name, path) for path in paths if (name := _name_of(path)) is not None]
        before = retired.get(f"{MANIFESTS}{folder.removeprefix(ROLLUPS)}/")
        reached = -1 if before is None else before.below - 1
        for (_, span), path in sorted(named, key=lambda item: (-item[0][0], item[0][1])):
            if span.last <= reached:
                continue
            try:
                rollup = read_rollup(blobs.read(path))
            except (BlobMissing, CorruptFile):
                continue  # Manifests say the same.
            reached = span.last
            for manifest in rollup.manifests:
                known[manifest_path(rollup.address, manifest.offset)] = manifest
    return known


def visible_files(blobs: Blobs) -> list[str]:
    """Returns the paths of the files under ``groups/`` that are part of the data.

    Raises:
        CorruptFile, NewerFile: a manifest, or the list of retired files, cannot be read.
    """
    return [file.path for file in named_files(blobs)]


def named_files(blobs: Blobs) -> list[VisibleFile]:
    """The files under ``groups/`` that manifests name, but for retired ones: those that are part
    of the data. Opens the roll-ups, and the manifests that none of them holds, from the oldest
    flush on of which a file may not be retired.

    Raises:
        CorruptFile, NewerFile: a manifest that cannot be read, or which files are retired.
    """
    # Files are named before they are retired, so the manifests are listed first.
    manifests = [*blobs.list(f"{MANIFESTS}/")]
    retired = all_retired(blobs)
    known = rolled_up(blobs, retired)
    files = [
        VisibleFile(one.address, *file)
        for one in retired.values()
        for file in one.kept
        if file.path.startswith(f"{GROUPS}/")
    ]
    for path, size in manifests:
        offset, address = offset_in(path), address_in(path)
        before = retired.get(f"{path.rpartition('/')[0]}/")
        if offset is None or address is None or (before is not None and offset < before.below):
            continue
        named = known.get(path)
        if named is None or named.size != size:
            try:
                named = NamedFiles(offset, size, paths_named(blobs, path))
            except BlobMissing:
                return named_files(blobs)  # Since it was listed, all its files were retired.
        files += (VisibleFile(address, offset, file) for file in named.files)
    return files


def encode_rollup(rollup: RollUp) -> bytes:
    """Two lines: the checksum of the second, which is JSON. Equal ones give equal bytes."""
    manifests = [manifest._asdict() for manifest in rollup.manifests]
    content = {"schema": _SCHEMA, **rollup.address._asdict(), "manifests": manifests}
    body = orjson.dumps(content)
    return b"%s\n%s\n" % (checksum(body).encode(), body)


def read_rollup(data: bytes) -> RollUp:
    """Decodes a roll-up.

    Raises:
        CorruptFile: the bytes are no roll-up of this version.
    """
    first, _, rest = data.partition(b"\n")
    body = rest.removesuffix(b"\n")
    if first != checksum(body).encode():
        raise CorruptFile(f"no roll-up: its checksum differs, in {data[:80]!r}")
    content = orjson.loads(body)
    if content["schema"] != _SCHEMA:
        raise CorruptFile(f"a roll-up of schema {content['schema']!r}, not {_SCHEMA}")
    return RollUp(
        PartitionAddress(content["environment"], content["generation"], content["partition"]),
        tuple(
            NamedFiles(manifest["offset"], manifest["size"], tuple(manifest["files"]))
            for manifest in content["manifests"]
        ),
    )


def newest_offset(blobs: Blobs, address: PartitionAddress) -> int | None:
    """Returns the offset of a partition's newest manifest; None: there is none. Lists what no
    roll-up holds, and what the newest one does: of a million manifests an object store lists a
    thousand a request."""
    spans = [span for level in _listed(blobs, address) for span in level]
    newest = max(spans, key=lambda span: span.last, default=None)
    if newest is None or newest.first == newest.last:
        return None if newest is None else newest.last
    for first in (newest.first, 0):  # Retention may have deleted what the newest roll-up holds.
        listed = _manifests(blobs, address, first - 1)
        if listed:
            return listed[-1].last
    return None


def _manifests(blobs: Blobs, address: PartitionAddress, reached: int) -> list[_Span]:
    """Those behind an offset."""
    after = manifest_path(address, reached) if reached >= 0 else ""
    offsets = (offset_in(one.path) for one in blobs.list(manifests_prefix(address), after=after))
    return [_Span(offset, offset) for offset in offsets if offset is not None]


def _listed(blobs: Blobs, address: PartitionAddress) -> list[list[_Span]]:
    """By level, from the manifests up, what no roll-up of a higher level holds."""
    levels: list[list[_Span]] = []
    reached = -1
    for level in range(_LEVEL_MAX, 0, -1):
        prefix = f"{rollups_prefix(address)}{level}-"
        listed = (
            _name_of(one.path) for one in blobs.list(prefix, after=f"{prefix}{reached + 1:020}")
        )
        levels.append([name[1] for name in listed if name is not None])
        reached = max([reached, *(span.last for span in levels[-1])])
    levels.append(_manifests(blobs, address, reached))
    return levels[::-1]


def _read_named(blobs: Blobs, address: PartitionAddress, offset: int) -> NamedFiles:
    data = blobs.read(manifest_path(address, offset))
    files = tuple(file.path for file in read_manifest(data).event.files)
    return NamedFiles(offset, len(data), files)


def _name_of(path: str) -> tuple[int, _Span] | None:
    """A roll-up's level, and what it holds; None of what is none."""
    found = rollup_in(path)
    return None if found is None else (found[0], _Span(*found[1:]))
