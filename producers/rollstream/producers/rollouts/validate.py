"""A caller's arguments to a rollout segment's fields, or ``InvalidRollout``. Pure.

A correct array costs one pass; only a wrong one is searched for the value to name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from operator import is_not, itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from rollstream.producers.rollouts import arrays
from rollstream.producers.rollouts.fields import (
    FIELDS,
    NEEDED,
    OTHER_NAMES,
    POLICY_FIELDS,
    checked,
    checked_reward,
    is_plain_name,
)
from rollstream.schemas import rules
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.fields import REQUIRED_ARRAYS, named
from rollstream.schemas.ingest.entry import PLAIN, SHARED, Entry, EntryKind, NamedArray
from rollstream.schemas.order import PolicyRef

_COMBINATIONS_KEPT = 1_024
_ENTRY_BYTES = 128  # Of an entry's numbers and of what others have as well, about.
_NUMBER_BYTES = 32  # Of a named number, about.

Segment = tuple[str, Entry, int]


class GroupAddress(NamedTuple):
    """Which group a rollout belongs to."""

    environment: str
    example_id: str
    group_uid: str
    group_size: int
    split: str


def group_address(
    environment: str, example_id: str, group_uid: str, group_size: int, split: str
) -> GroupAddress:
    """The address, once each part was checked; ``InvalidRollout`` names part, value and remedy."""
    environment = checked("environment", environment)
    group_size, split = checked("group_size", group_size), checked("split", split)
    uid = _name("group_uid", group_uid) if group_uid != "" else ""
    return GroupAddress(environment, _name("example_id", example_id), uid, group_size, split)


class Common(NamedTuple):
    """What the segments of one call have in common.

    Attributes:
        whole: the arguments by name, with those that were not given.
        rare: of the names of those that were given, the ones that few rollouts have.
        extras: what few rollouts have.
        shared: the values of ``SHARED``, checked.
        example_id, group_uid: checked.
        created_ts: of all of them.
    """

    whole: Mapping[str, Any]
    rare: Collection[str]
    extras: Mapping[str, Any]
    shared: tuple[Any, ...]
    example_id: str
    group_uid: str
    created_ts: int


def common_of(given: Mapping[str, Any], stamped: Mapping[str, Any], created_ts: int) -> Common:
    """A caller's arguments with names and policy, but for what a rollout has of its own.

    Args:
        given: the caller's arguments (``RolloutArguments``).
        stamped: ``UNSTAMPED`` with the names of producer and group, checked, for what is not given.

    Raises:
        InvalidRollout: names field, value and remedy.
        TypeError: an unknown argument, or a missing one.
    """
    if "actor_logprobs" in given or "actor_policy_version" in given:
        given = _with_own_names(given)
    if "policy" in given:
        given = _with_policy(given)
    elif "weight_step" not in given:
        raise InvalidRollout("policy", None, *_NO_STEP)
    whole = {**stamped, **given}
    if len(whole) > len(FIELDS):
        raise unknown("publish", next(name for name in given if name not in FIELDS))
    try:
        shared = _shared_of(whole)
        example_id = whole["example_id"]
    except KeyError as missing:
        raise TypeError(f"missing required keyword argument: {missing}") from None
    group_uid = whole["group_uid"]
    if "example_id" in given:  # Else it is a group's, which was checked.
        example_id = _name("example_id", example_id)
    if group_uid and "group_uid" in given:
        group_uid = _name("group_uid", group_uid)
    extras: dict[str, Any] = {}
    if shared[_STEP].__class__ is not int:
        shared = _one_step(shared, extras)
    try:
        shared = _known_combination(*shared)
    except TypeError:
        shared = tuple(map(checked, SHARED, shared))
    if "environment" in given:
        checked("environment", given["environment"])
    elif not whole["environment"]:
        remedy = "name it at the producer or at the call"
        raise InvalidRollout("environment", "", remedy, "is empty")
    rare = () if _RARE.isdisjoint(given) else given.keys() & _RARE
    common = (whole, rare, extras, shared, example_id, group_uid, created_ts)
    return _new(Common, common)


def segment(
    common: Common, own: Sequence[Any], new_uid: Callable[[], str], prompt: bytes | None = None
) -> Segment:
    """One segment, checked and copied: its environment, the entry, and about how many bytes of a
    record it takes (fewer only where a name is long, and each such name has a bound). What
    arguments usually are costs few calls.

    Args:
        own: what it has of its own, in the order of ``OWN``.
        prompt: its tokens, packed, where others have the same.

    Raises:
        InvalidRollout: names field, value and remedy.
    """
    whole, rare, extras, shared, example_id, group_uid, created_ts = common
    uid, tokens, output, logprobs, reward = own
    if uid != "":
        uid = _name("rollout_uid", uid)
    if reward is not None and (reward.__class__ is not float or not abs(reward) <= _FLOAT32_MAX):
        reward = checked_reward("reward", reward)
    if prompt is None:
        prompt = arrays.packed_tokens("prompt_tokens", tokens)
    output = arrays.packed_tokens("output_tokens", output)
    if not prompt and not output and whole["split"] != "eval":
        raise InvalidRollout("prompt_tokens", None, *_WITHOUT_TOKENS)
    length = len(output)
    count = length >> 2
    if logprobs.__class__ is np.ndarray and logprobs.ndim == 1:
        logprobs = arrays.packed_logprobs("logprobs", logprobs)
    elif logprobs is not None:
        extras = {**extras, **_logprobs("logprobs", logprobs)}
        logprobs = extras.pop("logprobs", None)
    size = _ENTRY_BYTES + len(example_id) + len(group_uid) + len(uid) + len(prompt) + length
    if logprobs is not None:
        size += len(logprobs)
        if len(logprobs) != length:
            rules.check_lengths({"logprobs": logprobs}, _TOKEN_BYTES, count)
    metadata, index, is_last, mask = _NOTHING_RARE
    if extras or rare:
        extras, (metadata, index, is_last, mask) = _with_rare(whole, rare, extras, count)
        size += _size(extras) + _size(metadata) + len(mask or b"")
    sampled = (len(prompt) >> 2, count, reward, prompt, output, logprobs, mask)
    uid = uid or new_uid()
    plain = (example_id, group_uid, uid, metadata, index, is_last, created_ts, *sampled)
    entry = _new(Entry, (shared, plain, extras or _NO_EXTRAS, _SEGMENT, None))
    return whole["environment"], entry, size


def policy_of(segment: Segment) -> PolicyRef:
    """The policy that sampled it, or the oldest of them."""
    return PolicyRef(*_policy_of(segment[1].shared))


def _with_own_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments under our names; ``InvalidRollout`` where two names have two values."""
    found = {name: value for name, value in given.items() if name not in OTHER_NAMES}
    for other, name in OTHER_NAMES.items():
        value = given.get(other)
        if value is None or (isinstance(value, str) and not value):
            continue
        if name == "policy_version" and "policy" in given:
            own = getattr(given["policy"], "version", None)  # No policy is refused later.
        else:
            own = found.setdefault(name, value)
        if own is not None and own is not value and not np.array_equal(own, value):
            raise InvalidRollout(
                name,
                own,
                "they are two names of one value: give one of them. What a trainer computed again "
                "is old_logprobs",
                f"is {own!r:.60} and {other} is {value!r:.60}",
            )
    return found


def _is_one_number(name: str, value: Any) -> bool:
    if value.__class__ is list:
        return False
    if value.__class__ is np.ndarray:
        return bool(value.ndim == 0)
    return arrays.as_array(name, value).ndim == 0


def _logprobs(name: str, value: Any) -> Mapping[str, Any]:
    """The field of those of each token, or that of their sum alone."""
    if not _is_one_number(name, value):
        return {name: checked(name, value)}
    total = checked_reward(name, value)
    if name == "logprobs":
        rules.check_logprob_sum(name, total)
    return {_SUMS[name]: total}


def _with_policy(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments with what the policy says in its place."""
    policy = given["policy"]
    both = [name for name in POLICY_FIELDS.values() if name in given]
    if both:
        remedy = (
            "policy= says all of it, so leave out the others, or give each of them and no policy"
        )
        finding = f"and {' and '.join(both)} are given"
        raise InvalidRollout("policy", policy, remedy, finding)
    try:
        said = {name: getattr(policy, field) for field, name in POLICY_FIELDS.items()}
    except AttributeError:
        remedy = (
            "give what producer.policy() or publish_policy returned, or anything that has version, "
        )
        raise InvalidRollout("policy", policy, f"{remedy}step, epoch and lineage") from None
    return {**{name: value for name, value in given.items() if name != "policy"}, **said}


def _name(field: str, name: Any) -> str:
    """The name, once it was checked."""
    return str(name if is_plain_name(name) else checked(field, name))


@lru_cache(_COMBINATIONS_KEPT, typed=True)
def _known_combination(*values: Any) -> tuple[Any, ...]:
    """The values of ``SHARED``, checked once: many rollouts have the same. ``TypeError`` where one
    is of another type than its field's, so that it may change."""
    found = tuple(map(checked, SHARED, values))
    if any(map(is_not, found, values)):
        raise TypeError(values)
    return found


def _one_step(combination: tuple[Any, ...], extras: dict[str, Any]) -> tuple[Any, ...]:
    """The combination with one number as its step; steps of each token become an extra."""
    step = combination[_STEP]
    if arrays.as_array("weight_step", step).ndim == 0:
        step = checked("weight_step", step)
    else:
        extras["weight_steps"], step = arrays.packed_steps("weight_step", step)
    return (*combination[:_STEP], step, *combination[_STEP + 1 :])


def _with_rare(
    whole: Mapping[str, Any], rare: Collection[str], extras: Mapping[str, Any], count: int
) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """The extras, with what few rollouts give and is not empty; and the fields ``_RARE_PLAIN``."""
    found = dict(extras)
    plain = dict(zip(_RARE_PLAIN, _NOTHING_RARE, strict=True))
    for name in rare:
        value = whole[name]
        if name in plain:
            plain[name] = checked(name, value)
        elif value is not FIELDS[name].default:
            each = _logprobs(name, value) if name in _SUMS else {name: checked(name, value)}
            found |= {
                key: one for key, one in each.items() if one or isinstance(one, bytes | float)
            }
    if "token_arrays" in found:
        named = found["token_arrays"].items()
        found["token_arrays"] = {key: arrays.token_array(key, rows, count) for key, rows in named}
    prior = found.get("continuation_of", "")
    uid, index = whole["rollout_uid"], plain["segment_idx"]
    rules.check_continuation(prior, uid, index)
    if index and not uid and not prior:
        finding = f"is not given, with segment_idx {index}"
        raise InvalidRollout("rollout_uid", uid, _UID_OF_ALL, finding)
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


def unknown(call: str, name: str) -> TypeError:
    """This call has no such argument."""
    told = f"; give {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
    return TypeError(f"{call}() got an unexpected keyword argument {name!r}{told}")


_TOKEN_BYTES = {
    "weight_step" if one.name == "weight_steps" else one.name: one.width
    for one in named("array")
    if one.name not in REQUIRED_ARRAYS
}
_ELSEWHERE = {  # Names of other systems, and ours.
    "environment_name": "environment",
    "prompt_ids": "prompt_tokens",
    "response_ids": "output_tokens",
    "generator_log_probs": "logprobs",
    "created_ts": "nothing: publish stamps it",
    # Names that publish() of a producer, or of a group, takes.
    "replica_id": "it to the producer",
    **dict.fromkeys(
        ("segment_idx", "is_last_segment", "continuation_of", "prefix_hash"),
        "whole members, or publish() each segment",
    ),
}
_NO_STEP = (
    "publish(policy=producer.policy(), …) says what sampled, or weight_step=N the optimizer steps "
    "behind it. weight_step=-1 says that they are not known: no trainer with a bound on staleness "
    "is given such a rollout",
    "is not given, nor is weight_step",
)
# Of no token a sequence of length 0 would be made, over which no loss is a mean. An evaluation may
# be a reward alone.
_WITHOUT_TOKENS = (
    "give the context that the policy saw, and a reward with the turn that earned it; what ended "
    "before it began is failed, or left out",
    "is empty, and nothing was sampled",
)
_UID_OF_ALL = "give the uid that publish returned for segment 0: all segments share it"
_NAMES = ("example_id", "group_uid", "rollout_uid")
_STEP = SHARED.index("weight_step")
_policy_of = itemgetter(*map(SHARED.index, ("lineage", "policy_epoch", "weight_step")))
_shared_of = itemgetter(*SHARED)
_SUMS = {"logprobs": "logprob_sum", "old_logprobs": "old_logprob_sum"}
_SEGMENT = EntryKind.SEGMENT
_new = tuple.__new__  # As ``Entry`` and ``Common`` themselves, in one call.
_FLOAT32_MAX = rules.FLOAT32_MAX
_NO_EXTRAS: Mapping[str, Any] = MappingProxyType({})  # One object for most entries.
_NO_TOKENS = dict.fromkeys(REQUIRED_ARRAYS, np.empty(0, np.int32))
_GIVEN_NOTHING = {name: one.default for name, one in FIELDS.items() if one.default is not NEEDED}
UNSTAMPED: Mapping[str, Any] = {**_GIVEN_NOTHING, **_NO_TOKENS}
_RARE_PLAIN = ("metadata", "segment_idx", "is_last_segment", "loss_mask")
_NOTHING_RARE: tuple[Any, ...] = ("{}", 0, True, None)
OWN = ("rollout_uid", "prompt_tokens", "output_tokens", "logprobs", "reward")
own_of = itemgetter(*OWN)
_RARE = FIELDS.keys() - {*SHARED, *_NAMES, *OWN, "environment"}
assert (
    *(*_NAMES, "metadata", "segment_idx", "is_last_segment", "created_ts", "prompt_count"),
    *("token_count", "reward", "prompt_tokens", "output_tokens", "logprobs", "loss_mask"),
) == PLAIN, "as segment() builds them"
