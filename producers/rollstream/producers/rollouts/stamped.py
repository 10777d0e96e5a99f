"""What the segments of one call have in common: names and policy, resolved once. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from types import MappingProxyType, NoneType
from typing import Any, NamedTuple

import numpy as np

from rollstream.producers.admission.policies import FollowedPolicy
from rollstream.producers.rollouts import arrays
from rollstream.producers.rollouts.fields import FIELDS, OTHER_NAMES, POLICY_FIELDS, checked
from rollstream.schemas import rules
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.ingest.entry import SHARED
from rollstream.schemas.order import Policy

_ENTRY_BYTES = 128  # Of an entry's numbers and of what others have as well, about.


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
    uid = checked_name("group_uid", group_uid) if group_uid != "" else ""
    return GroupAddress(environment, checked_name("example_id", example_id), uid, group_size, split)


class Common(NamedTuple):
    """What the segments of one call have in common, checked.

    Attributes:
        said: names, types and values of the arguments that said so; None where one may change.
        shared: the values of ``SHARED``.
        extras: what few rollouts have.
        size: about how many bytes the names take, and what each entry does.
    """

    said: tuple[Any, ...] | None
    shared: tuple[Any, ...]
    environment: str
    example_id: str
    group_uid: str
    extras: Mapping[str, Any]
    size: int


class Stamped:
    """What a rollout of one producer, or of one group, has where its call gives nothing. The
    newest call's names and policy are kept as they were checked: many calls have the same. Threads
    may share it.

    Args:
        names: of producer and group, checked, with ``UNSTAMPED``.
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names = names
        self._newest: Common | None = None

    def resolve(self, given: dict[str, Any]) -> tuple[Common, Mapping[str, Any]]:
        """What these arguments, without ``OWN``, say of all segments of a call; and those that few
        rollouts have, unchecked.

        Raises:
            InvalidRollout: names field, value and remedy.
            TypeError: an unknown argument, or a missing one.
        """
        newest = self._newest
        if newest is not None and newest.said == _said(given):
            return newest, _NOTHING
        rare = {name: given.pop(name) for name in _RARE.intersection(given)}
        if newest is None or not rare or newest.said != _said(given):
            newest = self._newest = self._common(given)
        return newest, rare

    def _common(self, given: Mapping[str, Any]) -> Common:
        said = _said(given) if _IMMUTABLE.issuperset(map(type, given.values())) else None
        if "policy" in given:
            given = _with_policy(given)
        elif "weight_step" not in given:
            raise InvalidRollout("policy", None, *_NO_STEP)
        if not given.keys() <= FIELDS.keys():
            raise _unknown(next(name for name in given if name not in FIELDS))
        extras: dict[str, Any] = {}
        step = given.get("weight_step", 0)
        if step.__class__ is not int and arrays.as_array("weight_step", step).ndim:
            extras["weight_steps"], step = arrays.packed_steps("weight_step", step)
            given = {**given, "weight_step": step}
        whole = {**self.names, **{name: checked(name, value) for name, value in given.items()}}
        try:
            shared, (example_id, group_uid) = _shared_of(whole), _named_by(whole)
        except KeyError as missing:
            raise TypeError(f"publish() missing required keyword argument: {missing}") from None
        environment = whole["environment"]
        if not environment:
            remedy = "name it at the producer or at the call"
            raise InvalidRollout("environment", "", remedy, "is empty")
        size = _ENTRY_BYTES + len(example_id) + len(group_uid)
        return Common(said, shared, environment, example_id, group_uid, extras, size)


def with_own_names(given: Mapping[str, Any]) -> Mapping[str, Any]:
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


def checked_name(field: str, name: Any) -> str:
    """The name, once it was checked; what names usually are costs little."""
    is_short = name.__class__ is str and 0 < len(name) <= rules.NAME_CHARS_MAX
    if is_short and name.isascii() and name.isprintable():
        return str(name)
    return str(checked(field, name))


def _said(given: Mapping[str, Any]) -> tuple[Any, ...]:
    """Equal for equal arguments of equal types. Their types differ before values are compared."""
    return (*given, *map(type, given.values()), *given.values())


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


def _unknown(name: str) -> TypeError:
    told = f"; give {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
    return TypeError(f"publish() got an unexpected keyword argument {name!r}{told}")


_ELSEWHERE = {  # Names of other systems, and ours.
    "environment_name": "environment",
    "prompt_ids": "prompt_tokens",
    "response_ids": "output_tokens",
    "generator_log_probs": "logprobs",
    "created_ts": "nothing: publish stamps it",
}
_NO_STEP = (
    "publish(policy=producer.policy(), …) says what sampled, or weight_step=N the optimizer steps "
    "behind it. weight_step=-1 says that they are not known: no trainer with a bound on staleness "
    "is given such a rollout",
    "is not given, nor is weight_step",
)
_shared_of, _named_by = itemgetter(*SHARED), itemgetter("example_id", "group_uid")
_IMMUTABLE = {str, int, bool, float, NoneType, Policy, FollowedPolicy}
_NOTHING: Mapping[str, Any] = MappingProxyType({})
OWN = ("rollout_uid", "prompt_tokens", "output_tokens", "logprobs", "reward")
"""What a segment has of its own in most calls; ``Stamped`` resolves the other arguments."""
_RARE = FIELDS.keys() - {*OWN, *SHARED, "environment", "example_id", "group_uid"}
UNSTAMPED: Mapping[str, Any] = {
    name: FIELDS[name].default for name in (*SHARED, "group_uid") if name != "policy_version"
}
