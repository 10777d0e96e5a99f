"""The arguments of ``publish_many`` to segments, checked in one pass over joined arrays. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from rollstream.producers.rollouts.validate import Segment, segment
from rollstream.schemas.errors import InvalidRollout, shown
from rollstream.schemas.ingest.entry import Entry
from rollstream.schemas.rules import FLOAT32_MAX, LOGPROB_MAX, LOGPROB_MIN, NAME_CHARS_MAX

_FOR_ALL = ("policy", "policy_version", "weight_step", "policy_epoch", "lineage")
# With other arguments each member is looked at by itself.
_PLAIN = frozenset(
    (*_FOR_ALL, "prompt_tokens", "output_tokens", "logprobs", "reward", "stop_reason")
) | {"rollout_uid"}
_INT32, _FLOAT32 = np.dtype("<i4"), np.dtype("<f4")
_DTYPES = {"prompt_tokens": _INT32, "output_tokens": _INT32, "logprobs": _FLOAT32}
_Columns = Mapping[str, Sequence[Any]]


def segments_together(
    given: Mapping[str, Any],
    stamped: Mapping[str, Any],
    created_ts: int,
    new_uid: Callable[[], str],
) -> list[Segment]:
    """The segments of a group's members, as ``segment`` makes each.

    Args:
        given: ``ManyArguments``: ``output_tokens`` has an array for each member.

    Raises:
        InvalidRollout: names the member's index, field, value and remedy.
    """
    count = _count(given.get("output_tokens"))
    columns = {name: values for name, values in given.items() if _has_one_each(name, values)}
    for name, values in columns.items():
        if len(values) != count:
            finding = f"has {len(values)} values, and output_tokens {count}"
            raise InvalidRollout(name, None, "give one for each member", finding)
    common = {name: value for name, value in given.items() if name not in columns}

    def member(index: int) -> Segment:
        own = {name: values[index] for name, values in columns.items()}
        try:
            return segment({**common, **own}, stamped, created_ts, new_uid)
        except InvalidRollout as wrong:
            wrong.index, wrong.of = index, "members"
            raise

    first = member(0)
    if given.keys() <= _PLAIN:
        alike = _alike(first, columns, count, new_uid)
        if alike is not None:
            return alike
    return [first, *map(member, range(1, count))]


def _count(outputs: Any) -> int:
    try:
        count = len(outputs)
        if count and not isinstance(outputs, str | bytes | Mapping):
            len(outputs[0])
            return count
    except TypeError:
        pass
    remedy = "give a list with an array of token ids for each member"
    raise InvalidRollout("output_tokens", None, remedy, f"is {shown(outputs)}")


def _has_one_each(name: str, values: Any) -> bool:
    """Whether it has a value for each member, and not one for all of them."""
    if name in _FOR_ALL or isinstance(values, str | Mapping) or not hasattr(values, "__len__"):
        return False
    if name != "prompt_tokens":
        return True
    if isinstance(values, Sequence):
        return bool(len(values)) and hasattr(values[0], "__len__")
    return getattr(values, "ndim", 1) > 1


def _alike(
    first: Segment, columns: _Columns, count: int, new_uid: Callable[[], str]
) -> list[Segment] | None:
    """The members, which have all but their columns from the first one; None where one of them is
    not as it is in a record, or not sound."""
    environment, entry, size = first
    example_id, group_uid, uid, metadata, index, is_last, created_ts = entry.plain[:7]
    _, _, reward, prompt, output, logprobs, mask = entry.plain[7:]
    size -= len(prompt) + len(output) + len(logprobs or b"") + len(uid)
    joined: dict[str, list[memoryview]] = {}
    for name, dtype in _DTYPES.items():
        if name in columns:
            views = _joined(columns[name], dtype)
            if views is None:
                return None
            joined[name] = views
    rewards = columns.get("reward", (reward,) * count)
    uids = columns.get("rollout_uid") or [uid, *(new_uid() for _ in range(count - 1))]
    if entry.extras or not _all_sound(uids):
        return None
    found: list[Segment] = []
    shared, extras = entry.shared, entry.extras
    each = zip(
        uids,
        rewards,
        joined.get("prompt_tokens", (prompt,) * count),
        joined["output_tokens"],
        joined.get("logprobs", (None,) * count),
        strict=True,
    )
    for uid, reward, prompt, output, logprobs in each:
        if reward.__class__ is not float or not abs(reward) <= FLOAT32_MAX:
            return None
        length = len(output)
        bytes_ = size + len(uid) + len(prompt) + length
        if logprobs is not None:
            bytes_ += length
            if len(logprobs) != length:
                return None
        tokens = (len(prompt) >> 2, length >> 2, reward, prompt, output, logprobs, mask)
        plain = (example_id, group_uid, uid, metadata, index, is_last, created_ts, *tokens)
        found.append((environment, Entry(shared, plain, extras), bytes_))
    return found


def _all_sound(uids: Sequence[Any]) -> bool:
    """Whether these are surely uids."""
    try:
        together = "".join(uids)
    except TypeError:
        return False
    plain = together.isascii() and together.isprintable()
    return plain and "" not in uids and max(map(len, uids)) <= NAME_CHARS_MAX


def _joined(values: Sequence[Any], dtype: np.dtype[Any]) -> list[memoryview] | None:
    """The arrays as views of one copy of them all; None where one has another dtype, or is empty,
    or a value is not sound."""
    for one in values:
        if one.__class__ is not np.ndarray or one.dtype is not dtype or one.ndim != 1:
            return None
        if not (one.size and one.flags.c_contiguous):
            return None
    together = b"".join(values)
    array = np.frombuffer(together, dtype)
    least = array.min()
    if dtype is _INT32:
        is_sound = least >= 0
    else:  # Neither compares true where any is no number.
        is_sound = least >= LOGPROB_MIN and array.max() <= LOGPROB_MAX
    if not is_sound:
        return None
    view = memoryview(together)
    ends = accumulate((one.nbytes for one in values), initial=0)
    return [view[start:end] for start, end in pairwise(ends)]
