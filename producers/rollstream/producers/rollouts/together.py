"""The arguments of ``publish_many`` to segments: what they share is checked once, and their arrays
are in one pass. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any

from rollstream.producers.rollouts.arrays import (
    logprobs_together,
    packed_tokens,
    tokens_together,
)
from rollstream.producers.rollouts.validate import (
    OWN,
    Common,
    Segment,
    common_of,
    plain_segments,
    segment,
)
from rollstream.schemas.errors import InvalidRollout, shown

_OWN = frozenset(OWN)
_TOGETHER = {
    "prompt_tokens": tokens_together,
    "output_tokens": tokens_together,
    "logprobs": logprobs_together,
}
_FOR_ALL = ("policy", "policy_version", "weight_step", "policy_epoch", "lineage")


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
    for_all = {name: value for name, value in given.items() if name not in columns}
    if columns.keys() <= _OWN:
        common = common_of(for_all, stamped, created_ts)
        plain = _plain(common, columns, count, new_uid)
        if plain is not None:
            return plain
    found = list[Segment]()
    try:
        for values in zip(*columns.values(), strict=True):
            own = dict(zip(columns, values, strict=True))
            found.append(segment({**for_all, **own}, stamped, created_ts, new_uid))
    except InvalidRollout as wrong:
        wrong.index, wrong.of = len(found), "members"
        raise
    return found


def _plain(
    common: Common,
    columns: Mapping[str, Sequence[Any]],
    count: int,
    new_uid: Callable[[], str],
) -> list[Segment] | None:
    """The segments of members that have what most have, which is looked at in one pass over all;
    None: one of them has not, or is wrong."""
    if "logprobs" not in columns and common.whole["logprobs"] is not None:
        return None
    own: dict[str, Any] = {name: repeat(common.whole[name], count) for name in OWN}
    prompt = packed_tokens("prompt_tokens", common.whole["prompt_tokens"])
    own["prompt_tokens"] = repeat(prompt, count)
    for name, values in columns.items():
        own[name] = _TOGETHER[name](values) if name in _TOGETHER else values
        if own[name] is None:
            return None
    return plain_segments(common, zip(*own.values(), strict=True), new_uid)


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
    if name in _FOR_ALL or (values.__class__ is not list and _is_one(values)):
        return False
    if name != "prompt_tokens":
        return True
    if isinstance(values, Sequence):
        return bool(len(values)) and hasattr(values[0], "__len__")
    return getattr(values, "ndim", 1) > 1


def _is_one(values: Any) -> bool:
    return isinstance(values, str | Mapping) or not hasattr(values, "__len__")
