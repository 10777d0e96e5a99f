"""Which entries of a record break a rule. A sound record costs a pass over each column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from math import inf
from typing import TYPE_CHECKING, Any

from rollstream.schemas import rules
from rollstream.schemas.fields import named
from rollstream.schemas.ingest.entry import EntryKind
from rollstream.schemas.rules import BrokenRule

if TYPE_CHECKING:
    from rollstream.schemas.ingest.record import IngestRecord

_SHARED_KEPT = 4_096
_NAMES = ("example_id", "group_uid", "rollout_uid")
_INFINITE = (inf, -inf)


def broken_entries(record: IngestRecord) -> Mapping[int, BrokenRule]:
    """The first rule that each unsound entry breaks, by the entry's number."""
    found: dict[int, BrokenRule] = {}
    for index, broken in _all_broken(record):
        found.setdefault(index, broken)
    return found


def _all_broken(record: IngestRecord) -> Iterator[tuple[int, BrokenRule]]:
    plain = not record.header["kinds"]
    if not plain:
        yield from _kinds(record)
    yield from _texts(record)
    yield from _shared(record, plain)
    if record.header["segment_idx"]:
        yield from _numbers("segment_idx", record.values("segment_idx"))
    created = record.values("created_ts")
    if min(created) < 0 or max(created) > rules.CREATED_TS_MAX:
        yield from _numbers("created_ts", created)
    last = record.header["is_last_segment"]
    if last.translate(None, b"\x00\x01"):
        yield from _flags("is_last_segment", last)
    for name in ("reward", "actor_logprob_sum"):
        values = record.values(name)
        if inf in values or -inf in values:
            for index, value in enumerate(values):
                if value in _INFINITE:
                    yield index, _broken(rules.check_finite, name, value)
    mask = record.arrays.get("loss_mask")
    if mask is not None:
        values = bytes(record.bytes_of(mask, 0, record.count))
        if values.translate(None, b"\x00\x01"):
            for index, (start, stop) in enumerate(pairwise(mask.ends)):
                if values[start:stop].translate(None, b"\x00\x01"):
                    finding = "has bytes other than 0 and 1"
                    yield index, BrokenRule("loss_mask", finding, "give one of them a token")


def _kinds(record: IngestRecord) -> Iterator[tuple[int, BrokenRule]]:
    for index, kind in enumerate(record.kinds):
        failure = record.failures.get(index)
        if kind not in iter(EntryKind):
            yield index, BrokenRule("kinds", f"is {kind}", "give 0, 1 or 2")
        elif (kind == EntryKind.FAILED) != (failure is not None):
            finding = f"is {kind}, and failures has {'one' if failure else 'none'} of this entry"
            yield index, BrokenRule("kinds", finding, "give one for each entry of kind 2")
        elif failure is not None and failure.count not in rules.BOUNDS["count"]:
            yield index, _broken(rules.check_number, "count", failure.count)


def _texts(record: IngestRecord) -> Iterator[tuple[int, BrokenRule]]:
    for field in named("text"):
        if not record.has(field.name):
            continue
        raw, sizes = record.text_bytes(field.name)
        try:
            str(raw, "utf-8")
        except UnicodeDecodeError:
            for index, (start, stop) in enumerate(pairwise(accumulate(sizes, initial=0))):
                try:
                    str(raw[start:stop], "utf-8")
                except UnicodeDecodeError as error:
                    yield index, BrokenRule(field.name, f"is no UTF-8: {error}", "encode it so")
        if field.name in _NAMES and max(sizes) > rules.NAME_CHARS_MAX:
            for index, value in enumerate(record.values(field.name)):
                if len(value) > rules.NAME_CHARS_MAX:
                    yield index, _broken(rules.check_name, field.name, value)
    if not all(record.values("rollout_uid")):
        for index, uid in enumerate(record.values("rollout_uid")):
            if not uid and record.kinds[index] == EntryKind.SEGMENT:
                remedy = "give one: nothing else tells it apart"
                yield index, BrokenRule("rollout_uid", "is empty", remedy)


def _shared(record: IngestRecord, plain: bool) -> Iterator[tuple[int, BrokenRule]]:
    wire = record.header["shared"]
    broken = [
        (_broken_shared(tuple(one.values()), True), _broken_shared(tuple(one.values()), False))
        for one in wire
    ]
    if not any(map(any, broken)):
        return
    for index, of in enumerate(record.shared_indexes):
        as_segment, as_control = broken[of]
        found = as_segment if record.kinds[index] == EntryKind.SEGMENT else as_control
        if found is not None:
            yield index, found


@lru_cache(_SHARED_KEPT)
def _broken_shared(values: tuple[Any, ...], of_segment: bool) -> BrokenRule | None:
    """The first rule that a combination breaks."""
    one = dict(zip((field.name for field in named("shared")), values, strict=True))
    try:
        for name in ("group_size", "policy_epoch", "weight_step"):
            rules.check_number(name, one[name])
        if of_segment:
            rules.check_version("policy_version", one["policy_version"])
        for name in ("lineage", "replica_id", "split", "stop_reason"):
            rules.check_name(name, one[name])
    except BrokenRule as broken:
        return broken
    return None


def _numbers(name: str, values: Sequence[int]) -> Iterator[tuple[int, BrokenRule]]:
    for index, value in enumerate(values):
        if value not in rules.BOUNDS[name]:
            yield index, _broken(rules.check_number, name, value)


def _flags(name: str, raw: Iterable[int]) -> Iterator[tuple[int, BrokenRule]]:
    for index, value in enumerate(raw):
        if value > 1:
            yield index, BrokenRule(name, f"is {value}", "give 0 or 1")


def _broken(check: Any, *args: Any) -> BrokenRule:
    try:
        check(*args)
    except BrokenRule as broken:
        return broken
    raise AssertionError(f"{args} break no rule")
