"""The sealed groups that are alive, each as a string of bytes. Pure."""

from __future__ import annotations

import json
import struct
from collections import OrderedDict
from collections.abc import Collection, Iterator, MutableMapping
from typing import Any

from rollstream.folds.group.known import GroupHeader, Key, KnownGroup
from rollstream.folds.group.packed_refs import INDEX_BITS, INDEX_MAX, PackedRefs
from rollstream.folds.group.packed_rows import PackedRows
from rollstream.schemas.events import SealedFile, ServedScore
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.order import PolicyRef
from rollstream.streams.folds.refs import GroupRef

# Digest, id where it is hexadecimal, weight step, first row, rows, flags, file, policies and
# version among those of the flush, bytes of the targets of late scores, of these scores as JSON, of
# the lineage, of an id that is not hexadecimal, and of the example.
_HEAD = struct.Struct("<16s16sqIIBHHHIIIII")
_HAS_REWARDS, _ALL_EQUAL, _IS_TRAIN = 1, 2, 4
_ID_AT, _ID_BYTES = 16, 16
_ROWS_AT, _VERSION_AT, _SIZES_AT = 4, 8, 9  # Among what the head holds.
_NO_ID = bytes(_ID_BYTES)
NEWEST_MAX = 4_096  # Groups that came last, or were looked at last: about 1.5 KB each.


class _Flush:
    """The groups of a flush that are alive.

    Attributes:
        records: by index in the flush; empty: it is one of the newest, which are not packed yet;
            None: it is not alive.
    """

    def __init__(self, sealed_ts: int, logged_ts: int) -> None:
        self.sealed_ts = sealed_ts
        self.logged_ts = logged_ts
        self.files: list[SealedFile] = []
        self.policies: list[tuple[PolicyRef, ...]] = []
        self.versions: list[tuple[str, int]] = []  # Of a policy, with its epoch.
        self.records: list[bytes | None] = []
        self.alive = 0

    def copied(self) -> _Flush:
        other = _Flush(self.sealed_ts, self.logged_ts)
        other.files, other.policies = self.files[:], self.policies[:]
        other.versions, other.records = self.versions[:], self.records[:]
        other.alive = self.alive
        return other


class KnownGroups(MutableMapping[GroupRef, KnownGroup]):
    """Groups by ref. Each takes about 250 bytes with 8 rows, besides what it
    shares with the others of its flush, but for ``NEWEST_MAX`` that stay objects: a queue that is
    served as fast as it fills packs none."""

    def __init__(self, packed: PackedRefs) -> None:
        self.packed = packed
        self._flushes: dict[int, _Flush] = {}
        self._size = 0
        self._newest: OrderedDict[int, KnownGroup] = OrderedDict()  # By packed ref.

    def __copy__(self) -> KnownGroups:
        """The same groups, which come and go apart from these."""
        other = KnownGroups(self.packed)
        other._size = self._size
        other._flushes = {number: flush.copied() for number, flush in self._flushes.items()}
        other._newest = self._newest.copy()
        return other

    def __getstate__(self) -> dict[str, Any]:
        """For a snapshot: all of them packed."""
        while self._newest:
            self._pack_oldest()
        return vars(self)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[GroupRef]:
        for number, flush in self._flushes.items():
            for index, record in enumerate(flush.records):
                if record is not None:
                    yield self.packed.unpack(number << INDEX_BITS | index)

    def __contains__(self, ref: object) -> bool:
        return isinstance(ref, GroupRef) and self._record(self.packed.find(ref)) is not None

    def __getitem__(self, ref: GroupRef) -> KnownGroup:
        packed = self.packed.find(ref)
        if packed not in self._newest and self._record(packed) is None:
            raise KeyError(ref)
        return self.at(packed)

    def __setitem__(self, ref: GroupRef, group: KnownGroup) -> None:
        number, index, flush = self._place(ref, group)
        flush.records[index] = b""
        self._keep(number << INDEX_BITS | index, group)

    def put(self, group: KnownGroup) -> None:
        """The group, which is not there yet and will hardly be looked at, is none of the newest."""
        _, index, flush = self._place(group.ref, group)
        flush.records[index] = _pack(group, flush)

    def _place(self, ref: GroupRef, group: KnownGroup) -> tuple[int, int, _Flush]:
        """Number, index and flush of a group that is there from now on."""
        assert group.ref == ref, (ref, group)
        number, index = divmod(self.packed.pack(ref), 1 << INDEX_BITS)
        flush = self._flushes.get(number)
        if flush is None:
            flush = self._flushes[number] = _Flush(group.sealed_ts, group.logged_ts)
        missing = index + 1 - len(flush.records)
        if missing > 0:
            flush.records.extend([None] * missing)
        new = flush.records[index] is None
        flush.alive += new
        self._size += new
        return number, index, flush

    def __delitem__(self, ref: GroupRef) -> None:
        if ref not in self:
            raise KeyError(ref)
        self.discard(ref)

    def discard(self, ref: GroupRef) -> None:
        """Without the group from now on, if it is there."""
        packed = self.packed.find(ref)
        if self._record(packed) is None:
            return
        number = packed >> INDEX_BITS
        flush = self._flushes[number]
        self._newest.pop(packed, None)
        flush.records[packed & INDEX_MAX] = None
        flush.alive -= 1
        self._size -= 1
        if not flush.alive:
            del self._flushes[number]

    def at(self, packed: int) -> KnownGroup:
        """The group of a packed ref; it must be there. It is one of the newest now."""
        group = self._newest.get(packed)
        if group is None:
            group = self.made(packed)
            self._keep(packed, group)
        return group

    def ranked(self, packed: int) -> tuple[str, int, tuple[PolicyRef, ...], bool]:
        """Of a group, which must be there and is not made: its example, ``sealed_ts``, policies,
        and ``all_equal``."""
        group = self._newest.get(packed)
        if group is not None:
            return group.key.example_id, group.sealed_ts, group.policies, group.all_equal
        flush = self._flushes[packed >> INDEX_BITS]
        record = flush.records[packed & INDEX_MAX]
        assert record, self.packed.unpack(packed)
        *_, flags, _, policies, _, _, _, lineage, group_id, size = _HEAD.unpack_from(record)
        start = _HEAD.size + lineage + group_id
        example_id = record[start : start + size].decode()
        return example_id, flush.sealed_ts, flush.policies[policies], bool(flags & _ALL_EQUAL)

    def aged(self, packed: int) -> tuple[str, int, PackedRows]:
        """Of a group, which must be there and is not made: its lineage, ``sealed_ts`` and rows."""
        group = self._newest.get(packed)
        if group is not None:
            return group.group.lineage, group.sealed_ts, group.rows
        flush = self._flushes[packed >> INDEX_BITS]
        record = flush.records[packed & INDEX_MAX]
        assert record, self.packed.unpack(packed)
        head = _HEAD.unpack_from(record)
        rows, sizes = head[_ROWS_AT], head[_SIZES_AT:]
        lineage = record[_HEAD.size : _HEAD.size + sizes[2]].decode()
        return lineage, flush.sealed_ts, PackedRows(rows, record[_HEAD.size + sum(sizes) :])

    def version_of(self, packed: int) -> str:
        """The ``policy_version`` of a group, which must be there and is not made."""
        group = self._newest.get(packed)
        if group is not None:
            return group.group.policy_version
        flush = self._flushes[packed >> INDEX_BITS]
        record = flush.records[packed & INDEX_MAX]
        assert record, self.packed.unpack(packed)
        version: int = _HEAD.unpack_from(record)[_VERSION_AT]
        return flush.versions[version][0]

    def key_of(self, ref: GroupRef) -> Key | None:
        """The key of the group alone; None: it is not there."""
        packed = self.packed.find(ref)
        group = self._newest.get(packed)
        if group is not None:
            return group.key
        found = self._record(packed) is not None
        return Key(ref.environment, self.ranked(packed)[0]) if found else None

    def of_flush(self, log: PartitionAddress, offset: int) -> list[KnownGroup]:
        """The groups of one flush."""
        start = self.packed.find(GroupRef(*log, offset, 0))
        flush = self._flushes.get(start >> INDEX_BITS)
        records = [] if flush is None else flush.records
        return [self.made(start + i) for i, record in enumerate(records) if record is not None]

    def paths(self, environment: str) -> set[str]:
        """The files of the environment's flushes, none of whose groups is made for it."""
        found = {
            file.path
            for number, flush in self._flushes.items()
            if self.packed.unpack(number << INDEX_BITS).environment == environment
            for file in flush.files
        }
        newest = self._newest.values()
        return found | {one.file.path for one in newest if one.key.environment == environment}

    def with_ids(self, group_ids: Collection[str]) -> list[KnownGroup]:
        """The groups with these ids; looks at all, and makes those alone."""
        raw = {_raw_id(group_id) for group_id in group_ids}
        found = [
            self.made(number << INDEX_BITS | index)
            for number, flush in self._flushes.items()
            for index, record in enumerate(flush.records)
            if record and record[_ID_AT : _ID_AT + _ID_BYTES] in raw
        ]
        each = {group.ref: group for group in (*found, *self._newest.values())}
        return [group for group in each.values() if group.group.group_id in group_ids]

    def made(self, packed: int) -> KnownGroup:
        """The group of a packed ref, which does not become one of the newest."""
        flush = self._flushes[packed >> INDEX_BITS]
        record = flush.records[packed & INDEX_MAX]
        ref = self.packed.unpack(packed)
        assert record is not None, ref
        return _unpack(ref, record, flush) if record else self._newest[packed]

    def _keep(self, packed: int, group: KnownGroup) -> None:
        self._newest[packed] = group
        if len(self._newest) > NEWEST_MAX:
            self._pack_oldest()

    def _pack_oldest(self) -> None:
        packed, group = self._newest.popitem(last=False)
        number, index = divmod(packed, 1 << INDEX_BITS)
        flush = self._flushes[number]
        if not flush.records[index]:
            flush.records[index] = _pack(group, flush)

    def _record(self, packed: int) -> bytes | None:
        flush = self._flushes.get(packed >> INDEX_BITS)  # There is none of -1.
        index = packed & INDEX_MAX
        return flush.records[index] if flush and index < len(flush.records) else None


def _raw_id(group_id: str) -> bytes:
    """Zeros where the id is not one that ``ids.group_id`` makes."""
    try:
        raw = bytes.fromhex(group_id)
    except ValueError:
        return _NO_ID
    return raw if len(raw) == _ID_BYTES and raw.hex() == group_id else _NO_ID


def _pack(group: KnownGroup, flush: _Flush) -> bytes:
    header = group.group
    if group.file not in flush.files:
        flush.files.append(group.file)
    if group.policies not in flush.policies:
        flush.policies.append(group.policies)
    version = (header.policy_version, header.policy_epoch)
    if version not in flush.versions:
        flush.versions.append(version)
    raw = _raw_id(header.group_id)
    texts = [header.lineage.encode(), b"", group.key.example_id.encode()]
    if raw == _NO_ID:
        texts[1] = header.group_id.encode()
    assert len(header.digest) == 16, header
    scores = json.dumps(group.scores).encode() if group.scores else b""
    head = _HEAD.pack(
        header.digest,
        raw,
        header.weight_step,
        header.row_start,
        header.rows,
        _HAS_REWARDS * group.has_rewards
        | _ALL_EQUAL * group.all_equal
        | _IS_TRAIN * group.is_train,
        flush.files.index(group.file),
        flush.policies.index(group.policies),
        flush.versions.index(version),
        len(group.targets),
        len(scores),
        *map(len, texts),
    )
    return b"".join((head, *texts, group.targets, scores, group.rows.data))


def _unpack(ref: GroupRef, record: bytes, flush: _Flush) -> KnownGroup:
    head = _HEAD.unpack_from(record)
    digest, raw, step, start, rows, flags, file, policies, version, targets, scores, *sizes = head
    policy_version, policy_epoch = flush.versions[version]
    texts, at = [], _HEAD.size
    for size in sizes:
        texts.append(record[at : at + size].decode())
        at += size
    lineage, group_id, example_id = texts
    given = record[at + targets : at + targets + scores]
    return KnownGroup(
        ref,
        Key(ref.environment, example_id),
        GroupHeader(
            group_id if raw == _NO_ID else raw.hex(),
            lineage,
            policy_version,
            policy_epoch,
            step,
            start,
            rows,
            digest,
        ),
        flush.files[file],
        flush.sealed_ts,
        flush.policies[policies],
        bool(flags & _IS_TRAIN),
        bool(flags & _HAS_REWARDS),
        bool(flags & _ALL_EQUAL),
        PackedRows(rows, record[at + targets + scores :]),
        record[at : at + targets],
        tuple(_score(*one) for one in json.loads(given)) if given else (),
        flush.logged_ts,
    )


def _score(*fields: Any) -> ServedScore:
    return ServedScore._make((*fields[:-1], tuple(fields[-1])))
