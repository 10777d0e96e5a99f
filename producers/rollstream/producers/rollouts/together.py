"""The arguments of ``publish_many`` to segments; what they share is checked once. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any

from rollstream.producers.rollouts.arrays import packed_tokens
from rollstream.producers.rollouts.validate import OWN, Segment, common_of, own_of, segment
from rollstream.schemas.errors import InvalidRollout, shown
from rollstream.schemas.ingest.entry import PLAIN

_OWN = frozenset(OWN)
_UID = PLAIN.index("rollout_uid")
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
    _refuse_steps_of_members(given.get("weight_step"), count)
    columns = {name: values for name, values in given.items() if _has_one_each(name, values)}
    for name, values in columns.items():
        if len(values) != count:
            finding = f"has {len(values)} values, and output_tokens {count}"
            raise InvalidRollout(name, None, "give one for each member", finding)
    for_all = {name: value for name, value in given.items() if name not in columns}
    common, prompt = None, None
    if columns.keys() <= _OWN:
        common = common_of(for_all, stamped, created_ts)
        if "prompt_tokens" not in columns:
            prompt = packed_tokens("prompt_tokens", common.whole["prompt_tokens"])
        each = [columns.get(name, repeat(common.whole[name], count)) for name in OWN]
    else:
        each = [*columns.values()]
    found = list[Segment]()
    try:
        for values in zip(*each, strict=True):
            if common is not None:
                found.append(segment(common, values, new_uid, prompt))
            else:
                own = dict(zip(columns, values, strict=True))
                one = common_of({**for_all, **own}, stamped, created_ts)
                found.append(segment(one, own_of(one.whole), new_uid))
    except InvalidRollout as wrong:
        wrong.index, wrong.of = len(found), "members"
        raise
    if "rollout_uid" in given:
        _refuse_repeated(found)
    return found


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


def _refuse_steps_of_members(steps: Any, count: int) -> None:
    """A list of steps is one for each token of every member, and not one for each member."""
    is_list = hasattr(steps, "__len__") and getattr(steps, "ndim", 1) != 0
    if count > 1 and is_list and len(steps) == count:
        remedy = "give one number for all members, or publish() each member with its own"
        finding = f"has {count} values, as many as there are members"
        raise InvalidRollout("weight_step", None, remedy, finding)


def _refuse_repeated(members: Sequence[Segment]) -> None:
    """No two have one uid: the second would be settled as a duplicate."""
    first: dict[str, int] = {}
    for index, (_, entry, _) in enumerate(members):
        uid = entry.plain[_UID]
        if first.setdefault(uid, index) != index:
            remedy = "give each member its own, or leave rollout_uid out"
            finding = f"is {uid!r:.80}, as that of members[{first[uid]}]"
            wrong = InvalidRollout("rollout_uid", uid, remedy, finding)
            wrong.index, wrong.of = index, "members"
            raise wrong


def _has_one_each(name: str, values: Any) -> bool:
    """Whether it has a value for each member, and not one for all of them."""
    if name in _FOR_ALL or isinstance(values, str | Mapping) or not hasattr(values, "__len__"):
        return False
    if getattr(values, "ndim", 1) == 0:  # It has the method, and no length.
        return False
    if name != "prompt_tokens":
        return True
    if isinstance(values, Sequence):
        return bool(len(values)) and hasattr(values[0], "__len__")
    return getattr(values, "ndim", 1) > 1
