"""Groups on their way into the data: as bytes under ``staging/``, and as what a flush seals. Pure.

A staged file is a line of JSON, which names each group and the sizes of its records, and these
records behind it, as they would stand in the ingest log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, count, groupby
from operator import attrgetter
from typing import Literal, NamedTuple, get_args

import orjson

from rollstream.consumers.assembling.decisions import (
    EVENT_BYTES_MAX,
    DueGroup,
    Row,
    SealDecision,
    event_bytes,
    values_of,
)
from rollstream.consumers.assembling.pending import names_of
from rollstream.consumers.importing.entries import entry_of
from rollstream.schemas.columns import ArraySignature
from rollstream.schemas.errors import InvalidRollout, UnreadableEvent, WrongValue
from rollstream.schemas.events import NOT_INGESTED
from rollstream.schemas.ids import MIXED_POLICY, GroupKey, group_id
from rollstream.schemas.ingest.encode import encode_entries
from rollstream.schemas.ingest.entry import Entry
from rollstream.schemas.ingest.record import decode_record
from rollstream.schemas.reasons import SealReason
from rollstream.schemas.records import RolloutGroup, RolloutRecord

ROWS_MAX = 32_768  # Of a staged file: a row's number has 16 bits wherever it is packed.
Compression = Literal["none", "lz4", "zstd"]
COMPRESSIONS = get_args(Compression)
_FORMAT = "groups.v1"
_IN_KEY = ("environment", "example_id", "group_uid")


class InvalidGroup(WrongValue):
    """A group cannot be imported, as one of its values breaks a rule; nothing of it was staged."""


class StagedGroup(NamedTuple):
    """A group as records.

    Attributes:
        id: of the group.
        version: what its key has as the policy version.
        records: in the form of the ingest log, with the rows in their order.
    """

    id: str
    version: str
    records: Sequence[bytes]

    @property
    def size(self) -> int:
        """Bytes of its records."""
        return sum(map(len, self.records))

    def due(self, row: int, request: int, asked_us: int, compression: str) -> DueGroup:
        """The group to be sealed.

        Args:
            row: of its first row, in the staged file.
            request, asked_us: the request's offset and log time.
            compression: of its file.

        Raises:
            UnreadableEvent, InvalidRollout: what it holds breaks a rule.
        """
        numbers = count(row)
        rows: list[Row] = []
        names, signatures = set(), dict[str, ArraySignature]()
        for record in map(decode_record, self.records):
            for broken in record.broken.values():
                raise broken
            names |= {names_of(one) for one in record.header["shared"]}
            signatures |= {name: run.signature for name, run in record.token_arrays.items()}
            rows += [(record, at, NOT_INGESTED, next(numbers)) for at in range(record.count)]
        record, index, _, _ = rows[0]
        environment, example_id, group_uid = (record.value(name, index) for name in _IN_KEY)
        splits = {*values_of(rows, "split")} - {"train"}
        return DueGroup(
            GroupKey(environment, example_id, 0, self.version, group_uid),
            min(splits, default="train"),
            SealReason.IMPORTED,
            0,
            rows,
            names,
            signatures,
            asked_us,
            request,
            compression,
        )


def encode_staged(groups: Sequence[StagedGroup]) -> bytes:
    """The bytes of a staged file. Equal groups give equal bytes."""
    named = [[one.id, one.version, [*map(len, one.records)]] for one in groups]
    head = orjson.dumps({"format": _FORMAT, "groups": named})
    return b"".join([head, b"\n", *chain.from_iterable(one.records for one in groups)])


def decode_staged(data: bytes) -> Iterator[StagedGroup]:
    """The groups of a staged file, whose checksum is right.

    Raises:
        ValueError: a file of another version.
    """
    head, _, _ = data.partition(b"\n")
    content, start = orjson.loads(head), len(head) + 1
    if content["format"] != _FORMAT:
        raise ValueError(
            f"its format is {content['format']!r}, not {_FORMAT!r}: upgrade this sealer"
        )
    for name, version, sizes in content["groups"]:
        records = []
        for size in sizes:
            records.append(data[start : start + size])
            start += size
        yield StagedGroup(name, version, records)


def stage(group: RolloutGroup, *, strict: bool, partitions: int) -> StagedGroup:
    """The group as records, once it was checked.

    Args:
        strict: whether a group without a ``group_uid`` has rollouts of one policy version.
        partitions: of its environment.

    Raises:
        InvalidGroup: it cannot be imported.
    """
    entries = [*_entries(group)]
    _check_members(group)
    key = GroupKey(
        *(group.environment, group.example_id, 0, _policy_in_key(group, strict)),
        group.rollouts[0].group_uid,
    )
    try:
        records = _records(group, entries, partitions)
        name = group_id(key, {one.rollout_uid for one in group.rollouts})
        staged = StagedGroup(name, key.policy_version, records)
        due = staged.due(0, 0, 0, "")
    except InvalidGroup:
        raise
    except WrongValue as error:
        raise InvalidGroup(error.field, error.value, error.remedy, error.finding) from error
    except (UnreadableEvent, UnicodeError, TypeError, ValueError, OverflowError) as error:
        remedy, finding = "give values of their fields' types", f"cannot be written: {error}"
        raise InvalidGroup("rollouts", group.example_id, remedy, finding) from error
    size = event_bytes(SealDecision(due, (), (), len(due.rows), 0))
    if size > EVENT_BYTES_MAX or len(due.rows) > ROWS_MAX:
        finding = f"has {len(due.rows):,} rows, {size:,} bytes of names and numbers"
        remedy = f"make several groups of it, of {ROWS_MAX:,} rows and {EVENT_BYTES_MAX:,} bytes"
        raise InvalidGroup("rollouts", len(due.rows), remedy, finding)
    return staged


def _entries(group: RolloutGroup) -> Iterator[Entry]:
    """The entry of each rollout, whose values have the types of their fields."""
    for name in ("example_id", "policy_version"):
        if not isinstance(value := getattr(group, name), str):
            raise InvalidGroup(name, value, "give a string")
    if not isinstance(group.rollouts, list | tuple):
        raise InvalidGroup("rollouts", group.rollouts, "give a tuple of RolloutRecord")
    for index, one in enumerate(group.rollouts):
        at = f"rollouts[{index}]"
        if not isinstance(one, RolloutRecord):
            raise InvalidGroup(at, one, "give a RolloutRecord")
        if not isinstance(one.worker_id, str):
            raise InvalidGroup(f"{at}.worker_id", one.worker_id, "give a string")
        try:
            yield entry_of(one)
        except InvalidRollout as error:
            field = f"{at}.{error.field}"
            raise InvalidGroup(field, error.value, error.remedy, error.finding) from error


def _check_members(group: RolloutGroup) -> None:
    """The rollouts are those of one group, each with all of its segments in a row."""
    if not group.rollouts:
        raise InvalidGroup(
            "rollouts", None, "give at least one, or leave the group out", "is empty"
        )
    wanted = (group.environment, group.example_id, group.rollouts[0].group_uid)
    before: RolloutRecord | None = None
    uids = set()
    for index, one in enumerate(group.rollouts):
        at = f"rollouts[{index}]"
        for name, value in zip(_IN_KEY, wanted, strict=True):
            if getattr(one, name) != value:
                remedy = f"all rollouts of a group have its {name}, {value!r:.80}"
                raise InvalidGroup(f"{at}.{name}", getattr(one, name), remedy)
        goes_on = before is not None and not before.is_last_segment
        number = before.segment_idx + 1 if before is not None and goes_on else 0
        uid = before.rollout_uid if before is not None and goes_on else one.rollout_uid
        if (one.rollout_uid, one.segment_idx) != (uid, number) or (uid in uids and not goes_on):
            remedy = "give each rollout once, its segments from 0 to the last one after each other"
            raise InvalidGroup(f"{at}.segment_idx", one.segment_idx, remedy)
        uids.add(uid)
        before = one
    if before is not None and not before.is_last_segment:
        remedy = "give the segments that are missing, or is_last_segment=True"
        raise InvalidGroup("rollouts[-1].is_last_segment", False, remedy)


def _policy_in_key(group: RolloutGroup, strict: bool) -> str:
    """The policy version as the group's key has it; empty where that has none."""
    versions = {one.policy_version for one in group.rollouts}
    due = versions.pop() if len(versions) == 1 else MIXED_POLICY
    inferred = strict and not group.rollouts[0].group_uid
    if not due or group.policy_version != due:
        remedy = f"name the policy of its rollouts; several make it {MIXED_POLICY!r}"
        raise InvalidGroup("policy_version", group.policy_version, remedy)
    if inferred and due == MIXED_POLICY:
        remedy = "give its rollouts a group_uid, or the environment grouping = 'mixed'"
        raise InvalidGroup("policy_version", due, remedy)
    return due if inferred else ""


def _records(group: RolloutGroup, entries: Sequence[Entry], partitions: int) -> list[bytes]:
    """The rollouts in order; a record has one worker's."""
    known: dict[str, tuple[str, tuple[int, ...]]] = {}
    records, left = [], iter(entries)
    for worker_id, rollouts in groupby(group.rollouts, attrgetter("worker_id")):
        of_worker = [next(left) for _ in rollouts]
        for entry in of_worker:
            for name, array in entry.extras.get("token_arrays", {}).items():
                kind = (array.dtype, array.shape)
                if known.setdefault(name, kind) != kind:
                    remedy = f"all rollouts of a group have the same: {known[name]}"
                    raise InvalidGroup(f"token_arrays[{name!r}]", str(kind), remedy)
        records.append(
            encode_entries(
                of_worker,
                environment=group.environment,
                worker_id=worker_id,
                partitions=partitions,
            )
        )
    return records
