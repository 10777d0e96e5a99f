"""Which entries of a record break a rule. A sound record costs a pass over each column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import inf
from struct import pack
from typing import TYPE_CHECKING, Any

from rollstream.schemas import rules
from rollstream.schemas.ingest.entry import EntryKind
from rollstream.schemas.ingest.layout import shared_fields
from rollstream.schemas.rules import BrokenRule

if TYPE_CHECKING:
    from rollstream.schemas.ingest.record import IngestRecord

_Found = Iterator[tuple[int, BrokenRule]]

_SHARED_KEPT = 4_096
_OWN_NAMES = ("example_id", "group_uid", "rollout_uid")
_REPEATED = ("lineage", "replica_id", "split", "stop_reason")
_NUMBERS = ("group_size", "policy_epoch", "weight_step")
_INFINITY, _MINUS_INFINITY = pack("<d", inf), pack("<d", -inf)
_FLAGS = b"\x00\x01"
_KINDS = frozenset(EntryKind)


def broken_entries(record: IngestRecord) -> Mapping[int, BrokenRule]:
    """The first rule that each unsound entry breaks, by the entry's number."""
    found: dict[int, BrokenRule] = {}
    for index, broken in _all_broken(record):
        found.setdefault(index, broken)
    return found


def _all_broken(record: IngestRecord) -> _Found:
    """Each column is looked at as a whole, and by entries only where something is wrong with it."""
    header, values = record.header, record.values
    if header["kinds"] or record.failures:
        yield from _kinds(record)
    for name, index in record.no_utf8:
        yield index, BrokenRule(name, "is no UTF-8", "encode it so")
    if record.arrays["prompt_tokens"].start > rules.NAME_CHARS_MAX:  # All texts stand before it.
        for name in _OWN_NAMES:
            if max(map(len, values(name))) > rules.NAME_CHARS_MAX:
                yield from _each(values(name), rules.check_name, name)
    if not all(values("rollout_uid")):
        yield from _without_uid(record)
    yield from _shared(record)
    if header["segment_idx"] and min(values("segment_idx")) < 0:
        yield from _each(values("segment_idx"), rules.check_number, "segment_idx")
    if header["created_ts"]:
        created = values("created_ts")
        if min(created) < 0 or max(created) > rules.CREATED_TS_MAX:
            yield from _each(created, rules.check_number, "created_ts")
    last = header["is_last_segment"]
    if last.translate(None, _FLAGS):
        yield from _each(last, _check_flag, "is_last_segment")
    yield from _infinite(record, "reward", header["reward"])
    if header["extras"] is not None:
        yield from _infinite(record, "actor_logprob_sum", header["extras"]["actor_logprob_sum"])
    mask = record.arrays.get("loss_mask")
    if mask is not None:
        flags = bytes(record.bytes_of(mask, 0, record.count))
        if flags.translate(None, _FLAGS):
            masks = [flags[start:stop] for start, stop in pairwise(mask.ends)]
            yield from _each(masks, _check_mask, "loss_mask")


def _each(values: Iterable[Any], check: Callable[[str, Any], None], name: str) -> _Found:
    for index, value in enumerate(values):
        try:
            check(name, value)
        except BrokenRule as broken:
            yield index, broken


def _check_flag(name: str, value: int) -> None:
    if value > 1:
        raise BrokenRule(name, f"is {value}", "give 0 or 1")


def _check_mask(name: str, flags: bytes) -> None:
    if flags.translate(None, _FLAGS):
        raise BrokenRule(name, "has bytes other than 0 and 1", "give one of them a token")


def _infinite(record: IngestRecord, name: str, raw: bytes) -> _Found:
    if _INFINITY in raw or _MINUS_INFINITY in raw:
        finite = [0.0 if value is None else value for value in record.values(name)]
        yield from _each(finite, rules.check_finite, name)


def _kinds(record: IngestRecord) -> _Found:
    for index, kind in enumerate(record.kinds):
        failure = record.failures.get(index)
        if kind not in _KINDS:
            yield index, BrokenRule("kinds", f"is {kind}", "give 0, 1 or 2")
        elif (kind == EntryKind.FAILED) != (failure is not None):
            finding = f"is {kind}, and failures has {'one' if failure else 'none'} of this entry"
            yield index, BrokenRule("kinds", finding, "give one for each entry of kind 2")
        elif failure is not None:
            for _, broken in _each([failure.count], rules.check_number, "count"):
                yield index, broken


def _without_uid(record: IngestRecord) -> _Found:
    for index, uid in enumerate(record.values("rollout_uid")):
        if not uid and record.kinds[index] != EntryKind.DISPATCHED:
            remedy = "give one: nothing else tells it apart"
            yield index, BrokenRule("rollout_uid", "is empty", remedy)


def _shared(record: IngestRecord) -> _Found:
    broken = [_broken_shared(tuple(one.values())) for one in record.header["shared"]]
    if not any(broken):
        return
    for index, of in enumerate(record.shared_indexes):
        for rule, of_segments in broken[of]:
            if not of_segments or record.kinds[index] == EntryKind.SEGMENT:
                yield index, rule


@lru_cache(_SHARED_KEPT)
def _broken_shared(values: tuple[Any, ...]) -> Sequence[tuple[BrokenRule, bool]]:
    """Which rules a combination breaks, and whether only as a segment's."""
    names = (field.name for field in shared_fields())
    one = dict(zip(names, values, strict=True))
    found = [
        (broken, False)
        for check, checked in ((rules.check_number, _NUMBERS), (rules.check_name, _REPEATED))
        for name in checked
        for _, broken in _each([one[name]], check, name)
    ]
    version = _each([one["policy_version"]], rules.check_version, "policy_version")
    return [*found, *((broken, True) for _, broken in version)]
