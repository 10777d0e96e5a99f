"""What ``publish`` takes: the one list of names, types and defaults, for every door.

A test holds it to ``rollout.v1.avsc``. Array-likes are lists, NumPy arrays, torch tensors, and
whatever else NumPy can read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, Required, TypedDict, TypeVar, get_type_hints

from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])


class SupportsArray(Protocol):
    """NumPy arrays, torch tensors, JAX arrays."""

    def __array__(self) -> NDArray[Any]: ...


Ints = SupportsArray | Sequence[int]
Floats = SupportsArray | Sequence[float]
Flags = SupportsArray | Sequence[bool]


class TurnArguments(TypedDict, total=False):
    """One segment: what was sampled, by which policy, and what it earned.

    Attributes:
        policy_version: the policy that sampled, as the trainer named it; never reused.
        weight_step: optimizer steps behind those weights: one number, or one per output token;
            -1: not known.
        policy_epoch: the trainer's epoch, where it has resumed.
        lineage: policies are compared only within one; default: the producer's.
        prompt_tokens: int32 [prompt].
        output_tokens: int32 [n].
        logprobs: float32 [n]; ``logprobs[i]`` is the log-probability of ``output_tokens[i]`` under
            the policy that sampled it.
        loss_mask: bool [n]; False for tokens of tools and of the environment; None: all True.
        reward: None: not known, and the group waits for it, though nothing can give a score later
            yet; in a trajectory, what a later segment earned counts for this one too.
        rewards: named components of the reward.
        stop_reason: ``stop``, ``length``, ``abort``, or a word of the environment's.
        metadata: anything that JSON can hold.
        actor_logprobs: the trainer's recomputation: float32 [n], or one number, their sum.
        actor_policy_version: the policy that recomputed.
        ref_logprobs: float32 [n], under the reference policy.
        token_rewards: float32 [n].
        token_arrays: name to an array [n, …] of any dtype and trailing shape.
        attachments: name to bytes; together at most ``ATTACHED_BYTES_MAX``.
        messages: the conversation, to be read by people.
    """

    policy_version: Required[str]
    weight_step: int | Ints
    policy_epoch: int
    lineage: str
    prompt_tokens: Ints
    output_tokens: Ints
    logprobs: Floats | None
    loss_mask: Flags | None
    reward: float | None
    rewards: Mapping[str, float]
    stop_reason: str
    metadata: Mapping[str, Any]
    actor_logprobs: Floats | float | None
    actor_policy_version: str
    ref_logprobs: Floats | None
    token_rewards: Floats | None
    token_arrays: Mapping[str, SupportsArray]
    attachments: Mapping[str, bytes]
    messages: Sequence[Mapping[str, Any]]


class MemberArguments(TurnArguments, total=False):
    """One rollout of a dispatched group.

    Attributes:
        rollout_uid: given by the caller it makes a retry idempotent, across processes too, within
            the sealer's dedupe horizon; empty: one is made.
        segment_idx: 0 for a rollout that is one segment.
        is_last_segment: whether the rollout ends here.
        continuation_of: the uid of the rollout whose earlier segment this one continues.
        prefix_hash: ``rollstream.schemas.ids.prefix_hash`` over the segments before this one.
    """

    rollout_uid: str
    segment_idx: int
    is_last_segment: bool
    continuation_of: str
    prefix_hash: str


class RolloutArguments(MemberArguments, total=False):
    """One rollout segment.

    Attributes:
        example_id: the problem that was worked on.
        environment: default: the producer's.
        group_uid: members of one group share it; empty: the sealer infers the group.
        group_size: members at which the group is complete; 0: the environment's target.
        split: ``train``, or ``eval``: stored, inspectable, never served for training.
        replica_id: the env replica; default: the producer's.
    """

    example_id: Required[str]
    environment: str
    group_uid: str
    group_size: int
    split: str
    replica_id: str


DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "environment": "",
        "group_uid": "",
        "group_size": 0,
        "rollout_uid": "",
        "segment_idx": 0,
        "is_last_segment": True,
        "continuation_of": "",
        "prefix_hash": "",
        "lineage": "",
        "policy_epoch": 0,
        "weight_step": -1,
        "replica_id": "unknown",
        "reward": None,
        "split": "train",
        "stop_reason": "stop",
        "prompt_tokens": (),
        "output_tokens": (),
        "logprobs": None,
        "loss_mask": None,
        "rewards": MappingProxyType({}),
        "metadata": MappingProxyType({}),
        "actor_logprobs": None,
        "actor_policy_version": "",
        "ref_logprobs": None,
        "token_rewards": None,
        "token_arrays": MappingProxyType({}),
        "attachments": MappingProxyType({}),
        "messages": (),
    }
)


def takes(arguments: type) -> Callable[[F], F]:
    """Shows the keywords of a door that takes ``**Unpack[arguments]`` in ``help`` and editors."""

    def show(function: F) -> F:
        plain = inspect.signature(function)
        shown = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=DEFAULTS.get(name, inspect.Parameter.empty),
                annotation=annotation,
            )
            for name, annotation in get_type_hints(arguments).items()
        ]
        kept = [p for p in plain.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        signature = plain.replace(parameters=[*kept, *shown])
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    return show
