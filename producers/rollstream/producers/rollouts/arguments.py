"""The arguments of ``publish`` and ``turn``: names, types and defaults, for both producers.

Tests hold them to the newest ``ingest_record.vN.avsc``, and to what ``RolloutProducer.publish``
says of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, Required, TypedDict, TypeVar, get_type_hints

from numpy.typing import NDArray

from rollstream.producers.admission.policies import PolicyLike
from rollstream.schemas.order import UNKNOWN_STEP

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


_NOTHING_NAMED: Mapping[str, Any] = MappingProxyType({})
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        **dict.fromkeys(("environment", "group_uid", "rollout_uid", "lineage"), ""),
        **dict.fromkeys(("continuation_of", "prefix_hash", "old_policy_version"), ""),
        **dict.fromkeys(("group_size", "segment_idx", "policy_epoch"), 0),
        **dict.fromkeys(("reward", "logprobs", "loss_mask"), None),
        **dict.fromkeys(("old_logprobs", "ref_logprobs", "token_rewards"), None),
        **dict.fromkeys(("rewards", "metadata", "token_arrays", "attachments"), _NOTHING_NAMED),
        **dict.fromkeys(("prompt_tokens", "output_tokens", "messages"), ()),
        "is_last_segment": True,
        "weight_step": UNKNOWN_STEP,
        "replica_id": "unknown",
        "split": "train",
        "stop_reason": "stop",
    }
)


OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {"actor_logprobs": "logprobs", "actor_policy_version": "policy_version"}
)
"""Arguments that are other names for one: the AIPO papers' for ours."""

_OF_POLICY = ("policy", "policy_version", "weight_step")


def _shown_default(name: str) -> Any:
    """Of what names a policy some are needed; which, no signature can say."""
    name = OTHER_NAMES.get(name, name)
    return ... if name in _OF_POLICY else DEFAULTS.get(name, inspect.Parameter.empty)


def takes(arguments: type) -> Callable[[F], F]:
    """Gives a function that takes ``**Unpack[arguments]`` the signature that ``help`` shows."""

    def show(function: F) -> F:
        plain = inspect.signature(function)
        shown = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=_shown_default(name),
                annotation=annotation,
            )
            for name, annotation in get_type_hints(arguments).items()
        ]
        kept = [p for p in plain.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        signature = plain.replace(parameters=[*kept, *shown])
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    return show
