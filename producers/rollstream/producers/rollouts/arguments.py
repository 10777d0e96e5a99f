"""The types of the arguments of ``publish`` and ``turn``, for both producers: what type checkers,
editors, ``help`` and notebooks show. ``fields`` has their checks and defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Required, TypedDict, TypeVar, get_type_hints

from numpy.typing import NDArray

from rollstream.producers.admission.policies import PolicyLike
from rollstream.producers.rollouts.fields import FIELDS, OTHER_NAMES

F = TypeVar("F", bound=Callable[..., Any])


class SupportsArray(Protocol):
    """NumPy arrays, torch tensors, JAX arrays."""

    def __array__(self) -> NDArray[Any]: ...


Ints = SupportsArray | Sequence[int]
Floats = SupportsArray | Sequence[float]
Flags = SupportsArray | Sequence[bool]


class TurnArguments(TypedDict, total=False):
    """What was sampled, by which policy, and what it earned (see ``RolloutProducer.publish``)."""

    policy: PolicyLike
    policy_version: str
    weight_step: int | Ints
    policy_epoch: int
    lineage: str
    prompt_tokens: Ints
    output_tokens: Ints
    logprobs: Floats | float | None
    loss_mask: Flags | None
    reward: float | None
    rewards: Mapping[str, float]
    stop_reason: str
    metadata: Mapping[str, Any]
    actor_logprobs: Floats | float | None
    actor_policy_version: str
    old_logprobs: Floats | float | None
    old_policy_version: str
    ref_logprobs: Floats | None
    token_rewards: Floats | None
    token_arrays: Mapping[str, SupportsArray]
    attachments: Mapping[str, bytes]
    messages: Sequence[Mapping[str, Any]]


class MemberArguments(TurnArguments, total=False):
    """One rollout of a dispatched group (see ``RolloutProducer.publish``)."""

    rollout_uid: str
    segment_idx: int
    is_last_segment: bool
    continuation_of: str
    prefix_hash: str


class RolloutArguments(MemberArguments, total=False):
    """One rollout segment (see ``RolloutProducer.publish``)."""

    example_id: Required[str]
    environment: str
    group_uid: str
    group_size: int
    split: str
    replica_id: str


class ManyArguments(TypedDict, total=False):
    """The whole members of a dispatched group (see ``Group.publish_many``)."""

    policy: PolicyLike
    policy_version: str
    weight_step: int
    policy_epoch: int
    lineage: str
    prompt_tokens: Ints | Sequence[Ints]
    output_tokens: Required[Sequence[Ints]]
    logprobs: Sequence[Floats | float | None] | None
    loss_mask: Sequence[Flags | None] | None
    reward: Sequence[float | None] | float | None
    rewards: Sequence[Mapping[str, float]]
    stop_reason: Sequence[str] | str
    metadata: Sequence[Mapping[str, Any]] | Mapping[str, Any]
    actor_logprobs: Sequence[Floats | float | None] | None
    actor_policy_version: str
    old_logprobs: Sequence[Floats | float | None] | None
    old_policy_version: str
    ref_logprobs: Sequence[Floats | None] | None
    token_rewards: Sequence[Floats | None] | None
    token_arrays: Sequence[Mapping[str, SupportsArray]]
    attachments: Sequence[Mapping[str, bytes]]
    messages: Sequence[Sequence[Mapping[str, Any]]]
    rollout_uid: Sequence[str]


class WholeArguments(TurnArguments, total=False):
    """One whole rollout more of a dispatched group (see ``Group.append``)."""

    rollout_uid: str


class AppendedArguments(WholeArguments, total=False):
    """One rollout more of a group (see ``RolloutProducer.append_to_group``)."""

    example_id: Required[str]
    environment: str
    group_uid: Required[str]
    split: str
    replica_id: str


_SOME_NEEDED = ("policy", "policy_version", "weight_step")  # Which of them, no signature can say.


def takes(arguments: type) -> Callable[[F], F]:
    """Gives a function of ``**Unpack[arguments]`` the signature that ``help`` shows."""

    def shown(name: str, annotation: Any) -> inspect.Parameter:
        own = OTHER_NAMES.get(name, name)
        default = ... if own in _SOME_NEEDED else FIELDS[own].default
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(name, kind, default=default, annotation=annotation)

    def show(function: F) -> F:
        plain = inspect.signature(function)
        kept = [p for p in plain.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        taken = [shown(*named) for named in get_type_hints(arguments).items()]
        function.__signature__ = plain.replace(parameters=[*kept, *taken])  # type: ignore[attr-defined]
        return function

    return show
