"""A caller's arguments to rollout segments, or ``InvalidRollout``. Pure.

A correct array costs one pass; only a wrong one is searched for the value to name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from rollstream.producers.rollouts.arrays import (
    LOGPROBS,
    packed,
    packed_tokens,
    token_array,
)
from rollstream.producers.rollouts.fields import (
    FIELDS,
    checked,
    checked_reward,
    packed_or_sum,
)
from rollstream.producers.rollouts.stamped import (
    OWN,
    Stamped,
    checked_name,
    with_own_names,
)
from rollstream.schemas import rules
from rollstream.schemas.errors import InvalidRollout, shown
from rollstream.schemas.fields import REQUIRED_ARRAYS, named
from rollstream.schemas.ingest.entry import PLAIN, SHARED, Entry, EntryKind, NamedArray
from rollstream.schemas.order import PolicyRef

_NUMBER_BYTES = 32  # Of a named number, about.

Segment = tuple[str, Entry, int]
"""Its environment, the entry, and about how many bytes of a record it takes (fewer only where a
name is long, and each such name has a bound)."""


def segment(
    stamped: Stamped, created_ts: int, new_uid: Callable[[], str], given: Mapping[str, Any]
) -> Segment:
    """One segment from ``RolloutArguments``, checked and copied. What arguments usually are is
    checked here, in few calls; the others by the table of ``fields``.

    Raises:
        InvalidRollout: names field, value and remedy.
        TypeError: an unknown argument, or a missing one.
    """
    if "actor_logprobs" in given or "actor_policy_version" in given:
        given = with_own_names(given)
    rest = dict(given)
    take = rest.pop
    uid, reward = take("rollout_uid", ""), take("reward", None)
    prompt, output = take("prompt_tokens", _NO_TOKENS), take("output_tokens", _NO_TOKENS)
    logprobs = take("logprobs", None)
    common, rare = stamped.resolve(rest)
    _, shared, environment, example_id, group_uid, extras, size = common
    if uid != "":
        uid = checked_name("rollout_uid", uid)
    if reward is not None:
        reward = checked_reward("reward", reward)
    prompt = packed_tokens("prompt_tokens", prompt)
    output = packed_tokens("output_tokens", output)
    if logprobs.__class__ is _ARRAY and logprobs.ndim:
        logprobs = packed("logprobs", logprobs, LOGPROBS)
    elif logprobs is not None:
        logprobs = packed_or_sum("logprobs", logprobs)
        if logprobs.__class__ is float:
            extras, logprobs = {**extras, "logprob_sum": logprobs}, None
    length = len(output)
    if not length and not prompt and shared[_SPLIT] != "eval":
        raise InvalidRollout("prompt_tokens", None, *_WITHOUT_TOKENS)
    count = length >> 2
    size += len(uid) + len(prompt) + length
    if logprobs is not None:
        size += len(logprobs)
        if len(logprobs) != length:
            rules.check_lengths({"logprobs": logprobs}, _TOKEN_BYTES, count)
    metadata, index, is_last, mask = _NOTHING_RARE
    if extras or rare:
        extras, (metadata, index, is_last, mask) = _with_rare(uid, rare, extras, count)
        size += _size(extras) + _size(metadata) + len(mask or b"")
    sampled = (len(prompt) >> 2, count, reward, prompt, output, logprobs, mask)
    uid = uid or new_uid()
    plain = (example_id, group_uid, uid, metadata, index, is_last, created_ts, *sampled)
    return environment, _new(Entry, (shared, plain, extras, _SEGMENT, None)), size


def segments(
    stamped: Stamped, created_ts: int, new_uid: Callable[[], str], given: Mapping[str, Any]
) -> list[Segment]:
    """The segments of a group's members (``ManyArguments``: ``output_tokens`` has an array for
    each), as ``segment`` makes each. What they share is resolved once.

    Raises:
        InvalidRollout: names the member's index, field, value and remedy.
    """
    count = _count(given.get("output_tokens"))
    each = {name: values for name, values in given.items() if _has_one_each(name, values)}
    for name, values in each.items():
        if len(values) != count:
            finding = f"has {len(values)} values, and output_tokens {count}"
            raise InvalidRollout(name, None, "give one for each member", finding)
    for_all = with_own_names({name: one for name, one in given.items() if name not in each})
    try:
        found = _together(stamped, created_ts, new_uid, each, for_all)
    except InvalidRollout:
        found = None  # It is found again below, with its member.
    if found is not None:
        return found
    found = []
    try:
        for values in zip(*each.values(), strict=True):
            own = dict(zip(each, values, strict=True))
            found.append(segment(stamped, created_ts, new_uid, {**for_all, **own}))
    except InvalidRollout as wrong:
        if found or wrong.field.partition("[")[0] not in {*for_all, "policy"}:
            wrong.index, wrong.of = len(found), "members"
        raise
    return found


def _together(
    stamped: Stamped,
    created_ts: int,
    new_uid: Callable[[], str],
    each: Mapping[str, Any],
    for_all: Mapping[str, Any],
) -> list[Segment] | None:
    """What ``segments`` returns; None if a member has what few rollouts have."""
    rest, nothing = dict(for_all), [None] * len(each["output_tokens"])
    shared_prompt = rest.pop("prompt_tokens", _NO_TOKENS)
    if not (each.keys() <= _OWN and _OWN.isdisjoint(rest)):
        return None
    common, rare = stamped.resolve(rest)
    if common.extras or rare:
        return None
    outputs = [packed_tokens("output_tokens", one) for one in each["output_tokens"]]
    logprobs = [packed("logprobs", one, LOGPROBS) for one in each.get("logprobs", nothing)]
    if "prompt_tokens" in each:
        prompts = [packed_tokens("prompt_tokens", one) for one in each["prompt_tokens"]]
    else:
        prompts = [packed_tokens("prompt_tokens", shared_prompt)] * len(outputs)
    _, shared, environment, example_id, group_uid, extras, size = common
    found, uids = [], each.get("rollout_uid", [""] * len(outputs))
    own = zip(uids, each.get("reward", nothing), prompts, outputs, logprobs, strict=True)
    for given_uid, given_reward, prompt, output, of_output in own:
        length = len(output)
        if not length or (of_output is not None and len(of_output) != length):
            return None
        uid = new_uid() if given_uid == "" else checked_name("rollout_uid", given_uid)
        reward = None if given_reward is None else checked_reward("reward", given_reward)
        sampled = (len(prompt) >> 2, length >> 2, reward, prompt, output, of_output, None)
        plain = (example_id, group_uid, uid, "{}", 0, True, created_ts, *sampled)
        entry = _new(Entry, (shared, plain, extras, _SEGMENT, None))
        found.append((environment, entry, size + len(uid) + len(prompt) + 2 * length))
    return found


def policy_of(segment: Segment) -> PolicyRef:
    """The policy that sampled it, or the oldest of them."""
    return PolicyRef(*_policy_of(segment[1].shared))


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


def _with_rare(
    uid: str, rare: Mapping[str, Any], extras: Mapping[str, Any], count: int
) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """The extras, with what few rollouts give and is not empty; and the fields ``_RARE_PLAIN``."""
    found = dict(extras)
    plain = dict(zip(_RARE_PLAIN, _NOTHING_RARE, strict=True))
    for name, value in rare.items():
        if name in plain:
            plain[name] = checked(name, value)
        elif value is not FIELDS[name].default:
            one = checked(name, value)
            if one.__class__ is float:
                found["old_logprob_sum"] = one
            elif one or isinstance(one, bytes):
                found[name] = one
    if "token_arrays" in found:
        named = found["token_arrays"].items()
        found["token_arrays"] = {key: token_array(key, rows, count) for key, rows in named}
    rules.check_continuation(found.get("continuation_of", ""), uid, plain["segment_idx"])
    given_arrays = {**found, **plain, "weight_step": found.get("weight_steps")}
    rules.check_lengths(given_arrays, _TOKEN_BYTES, count)
    return found, tuple(plain.values())


def _size(value: Any) -> int:
    """About how many bytes of a record an extra takes."""
    if isinstance(value, str):
        return len(value) if value.isascii() else 4 * len(value)
    if isinstance(value, Mapping):
        return sum(_size(name) + _size(one) for name, one in value.items())
    if isinstance(value, NamedArray):
        return len(value.data)
    return len(value) if isinstance(value, bytes) else _NUMBER_BYTES


_TOKEN_BYTES = {
    "weight_step" if one.name == "weight_steps" else one.name: one.width
    for one in named("array")
    if one.name not in REQUIRED_ARRAYS
}
# Of no token a sequence of length 0 would be made, over which no loss is a mean. An evaluation may
# be a reward alone.
_WITHOUT_TOKENS = (
    "give the context that the policy saw, and a reward with the turn that earned it; what ended "
    "before it began is failed, or left out",
    "is empty, and nothing was sampled",
)
_NO_TOKENS = np.empty(0, np.int32)
_ARRAY = np.ndarray
_OWN = frozenset(OWN)
_FOR_ALL = ("policy", "policy_version", "weight_step", "policy_epoch", "lineage")
_policy_of = itemgetter(*map(SHARED.index, ("lineage", "policy_epoch", "weight_step")))
_SPLIT = SHARED.index("split")
_SEGMENT = EntryKind.SEGMENT
_new = tuple.__new__  # As ``Entry`` itself, in one call.
_RARE_PLAIN = ("metadata", "segment_idx", "is_last_segment", "loss_mask")
_NOTHING_RARE: tuple[Any, ...] = ("{}", 0, True, None)
assert (
    *("example_id", "group_uid", "rollout_uid", "metadata", "segment_idx", "is_last_segment"),
    *("created_ts", "prompt_count", "token_count", "reward", "prompt_tokens", "output_tokens"),
    *("logprobs", "loss_mask"),
) == PLAIN, "as segment() builds them"
