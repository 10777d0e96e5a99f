"""Which entries of a record break a rule. A sound record costs a pass over each column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas import rules
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.fields import named
from rollstream.schemas.ids import step_rollout_uid
from rollstream.schemas.ingest.entry import SEGMENT_KINDS, EntryKind
from rollstream.schemas.ingest.frame import Frame
from rollstream.schemas.ingest.wire import COUNTS, unpacked
from rollstream.schemas.metadata import are_metadata, check_metadata

_Found = Iterator[tuple[int, InvalidRollout]]

_SHARED_KEPT = 4_096
_KNOWN_CHARS_MAX = 1_024  # Of a combination that is remembered: together a few MiB.
# Not by ``check_uid``: uids of records from before that rule have control characters, and these
# records must not become dead letters.
_OWN_NAMES = ("example_id", "group_uid", "rollout_uid", "trajectory_uid")
_SHARED_NAMES = ("lineage", "replica_id", "stop_reason", "old_policy_version")
_OWN_NUMBERS = ("segment_idx", "is_last_segment", "created_ts")
_SHARED_CHECKS: Mapping[str, Callable[[str, Any], None]] = {
    **dict.fromkeys(("group_size", "policy_epoch", "weight_step"), rules.check_number),
    **dict.fromkeys(_SHARED_NAMES, rules.check_name),
    "split": rules.check_split,
    "policy_version": rules.check_version,
}
_TOLD: Mapping[str, Callable[[str, Any], None]] = {
    "producer_id": rules.check_name,
    **dict.fromkeys(("begun", "waiting"), rules.check_number),
}
_WITHOUT_UID = (EntryKind.DISPATCHED, EntryKind.ALIVE)


def broken_entries(record: Frame) -> Mapping[int, InvalidRollout]:
    """Returns the first rule that each unsound entry breaks, by the entry's number.

    Each column is checked as a whole. Its entries are checked only if the column breaks a rule.
    """
    found: dict[int, InvalidRollout] = {}
    checks = (_kinds, _producer, _texts, _metadata, _shared, _numbers, _rewards, _arrays)
    for check in checks:
        for index, broken in check(record):
            found.setdefault(index, broken)
    return found


def _each(values: Iterable[Any], check: Callable[[str, Any], None], name: str) -> _Found:
    for index, value in enumerate(values):
        try:
            check(name, value)
        except InvalidRollout as broken:
            yield index, broken


def _kinds(record: Frame) -> _Found:
    if not record.header["kinds"] and not record.failures:
        return
    for index, kind in enumerate(record.kinds):
        failure = record.failures.get(index)
        if kind > EntryKind.STEP_TO_SCORE:
            yield index, InvalidRollout("kinds", kind, "give a number from 0 to 7")
        elif (kind == EntryKind.FAILED) != (failure is not None):
            finding = f"is {kind}, and failures has {'one' if failure else 'none'} of this entry"
            remedy = "give one for each entry of kind 2"
            yield index, InvalidRollout("kinds", kind, remedy, finding)
        elif failure is not None:
            for _, broken in _each([failure.count], rules.check_number, "count"):
                yield index, broken


def _producer(record: Frame) -> _Found:
    """Checks what a record says of its producer. If that is wrong, the entries are broken that
    begin groups or say that the producer lives."""
    told = record.header["producer"]
    if told is None:
        return
    found = [broken for name in told for _, broken in _each([told[name]], _TOLD[name], name)]
    if not told["producer_id"]:
        remedy = "give one that no other process has, nor this one in another life"
        found.append(InvalidRollout("producer_id", "", remedy, "is empty"))
    for index, kind in enumerate(record.kinds if found else ()):
        if kind in _WITHOUT_UID:
            yield index, found[0]


def _texts(record: Frame) -> _Found:
    for name, index in record.no_utf8:
        yield index, InvalidRollout(name, None, "encode it so", "is no UTF-8")
    for name in _OWN_NAMES:
        values = record.texts.get(name, ())
        if max(map(len, values), default=0) > rules.NAME_CHARS_MAX:
            yield from _each(values, rules.check_name, name)
    uids = record.values("rollout_uid")
    if not all(uids):
        for index, uid in enumerate(uids):
            if not uid and record.kinds[index] not in _WITHOUT_UID:
                remedy = "give one: nothing else tells it apart"
                yield index, InvalidRollout("rollout_uid", "", remedy, "is empty")
    trajectories = record.texts.get("trajectory_uid")
    if trajectories:
        each = zip(uids, record.values("group_uid"), trajectories, strict=True)
        for index, (uid, prompt, trajectory) in enumerate(each):
            if trajectory and uid != step_rollout_uid(prompt, trajectory):
                finding = f"is {uid!r:.80}, which is no digest of group_uid and trajectory_uid"
                remedy = "give step_rollout_uid() of these"
                yield index, InvalidRollout("rollout_uid", uid, remedy, finding)


def _metadata(record: Frame) -> _Found:
    texts = record.texts.get("metadata", ())
    if not are_metadata(set(texts)):
        for index, broken in _each(texts, check_metadata, "metadata"):
            if record.kinds[index] in SEGMENT_KINDS:  # Nobody reads another's.
                yield index, broken


def _shared(record: Frame) -> _Found:
    broken = []
    for one in record.header["shared"]:
        values = tuple(one.values())
        known = sum(len(value) for value in values if isinstance(value, str)) <= _KNOWN_CHARS_MAX
        broken.append((_known_shared if known else _broken_shared)(values))
    if not any(broken):
        return
    for index, of in enumerate(record.shared_indexes):
        for rule in broken[of]:
            # Only a segment needs a policy.
            if rule.field != "policy_version" or record.kinds[index] in SEGMENT_KINDS:
                yield index, rule


def _broken_shared(values: tuple[Any, ...]) -> Sequence[InvalidRollout]:
    """Returns the rules that a combination breaks."""
    one = {field.name: value for field, value in zip(named("shared"), values, strict=True)}
    checks = (_each([one[name]], check, name) for name, check in _SHARED_CHECKS.items())
    return [broken for _, broken in chain.from_iterable(checks)]


_known_shared = lru_cache(_SHARED_KEPT)(_broken_shared)


def _numbers(record: Frame) -> _Found:
    for name in _OWN_NUMBERS:
        if record.header[name]:
            values, bounds = record.values(name), rules.BOUNDS[name]
            if min(values) not in bounds or max(values) not in bounds:
                yield from _each(values, rules.check_number, name)
    for field in named("number"):
        if field.default is None:
            raw = record.raw(field)
            # NaN, which is none, is not beyond it.
            if raw and (np.abs(np.frombuffer(raw, field.dtype)) > rules.FLOAT32_MAX).any():
                finite = (0.0 if value is None else value for value in record.values(field.name))
                yield from _each(finite, rules.check_finite, field.name)
    if record.extra("logprob_sum"):
        sums = (0.0 if value is None else value for value in record.values("logprob_sum"))
        yield from _each(sums, rules.check_logprob_sum, "logprob_sum")


def _rewards(record: Frame) -> _Found:
    wire = record.extra("rewards")
    if wire is None:
        return
    values = np.frombuffer(wire["values"], "<f8")
    sound = np.abs(values) <= rules.FLOAT32_MAX
    if not sound.all():
        entries = np.repeat(np.arange(record.count), unpacked(COUNTS, wire["counts"]))
        names = unpacked(COUNTS, wire["indexes"])
        for at in np.flatnonzero(~sound).tolist():
            name = f"rewards[{wire['names'][names[at]]!r:.80}]"
            for _, broken in _each([values[at].item()], rules.check_finite, name):
                yield int(entries[at]), broken


def _arrays(record: Frame) -> _Found:
    for name, (dtype, low, high, check) in _ARRAY_CHECKS.items():
        run = record.arrays.get(name)
        if run is not None:
            values = np.frombuffer(record.bytes_of(run, 0, record.count), dtype)
            # Neither comparison holds if a value is NaN.
            sound = np.minimum.reduce(values, initial=0) >= low
            if not (sound and np.maximum.reduce(values, initial=0) <= high):
                by_entry = (values[start:stop] for start, stop in pairwise(run.ends))
                yield from _each(by_entry, check, name)


def _check_mask(name: str, flags: NDArray[np.uint8]) -> None:
    if flags.max(initial=0) > 1:
        finding = "has bytes other than 0 and 1"
        raise InvalidRollout(name, int(flags.max()), "give one of them a token", finding)


_TOKENS = ("<i4", 0, rules.INT_MAX, rules.check_tokens)
_LOGPROBS = ("<f4", rules.LOGPROB_MIN, rules.LOGPROB_MAX, rules.check_logprobs)
# Of each array its dtype, its least and greatest value, and the check that names another one.
_ARRAY_CHECKS: Mapping[str, tuple[str, float, float, Callable[[str, Any], None]]] = {
    **dict.fromkeys(("prompt_tokens", "output_tokens"), _TOKENS),
    **dict.fromkeys(("logprobs", "old_logprobs", "ref_logprobs"), _LOGPROBS),
    "token_rewards": ("<f4", -rules.FLOAT32_MAX, rules.FLOAT32_MAX, rules.check_floats),
    "loss_mask": ("|u1", 0, 1, _check_mask),
}
