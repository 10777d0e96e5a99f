"""Rollouts, groups and batches as users see them: frozen, made on request and not used inside.

Arrays are views of the columns that they came from; nothing is copied.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.columns import Columns
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.fields import array_fields, scalar_fields
from rollstream.schemas.ids import MIXED_POLICY
from rollstream.schemas.order import UNKNOWN_STEP


def _no_tokens() -> NDArray[np.int32]:
    return np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class RolloutMetadata:
    """Who made a rollout, when, and with which weights.

    Attributes:
        worker_id: the process.
        timestamp: seconds since 1970, UTC.
        weight_step: optimizer steps that the weights have had; -1: not known.
    """

    worker_id: str
    timestamp: float
    weight_step: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RolloutRecord:
    """One rollout segment; the fields are those of ``rollstream.schemas.fields``.

    Attributes:
        rollout_uid: of a step, ``rollstream.schemas.ids.step_rollout_uid``.
        trajectory_uid: of a step, as its writer named the trajectory; empty where that is
            ``rollout_uid``.
        prompt_tokens: int32 [prompt_count].
        output_tokens: int32 [token_count].
        logprobs: float32 [token_count], under the policy that sampled.
        logprob_sum: their sum, where it alone was published.
        loss_mask: bool [token_count]; None: every token is trained on.
        reward: None: a score is awaited.
        metadata: what the producer gave.
        old_logprobs: the trainer's recomputation, float32 [token_count], or their sum.
        old_policy_version: the policy that recomputed.
        ref_logprobs: float32 [token_count].
        token_rewards: float32 [token_count].
        weight_steps: int64 [token_count], where the weights changed within the rollout.
        token_arrays: name to [token_count, …].
        messages: the conversation, for people. What was written there and is no JSON list of
            objects comes as one message of the role ``unreadable``, with that text as ``content``.
        created_ts: microseconds since 1970, UTC.
    """

    environment: str
    example_id: str
    policy_version: str
    replica_id: str = "unknown"
    rollout_uid: str = ""
    group_uid: str = ""
    group_size: int = 0
    segment_idx: int = 0
    is_last_segment: bool = True
    continuation_of: str = ""
    prefix_hash: str = ""
    trajectory_uid: str = ""
    lineage: str = ""
    policy_epoch: int = 0
    weight_step: int = UNKNOWN_STEP
    worker_id: str = ""
    created_ts: int = 0
    prompt_count: int = 0
    token_count: int = 0
    reward: float | None = None
    split: str = "train"
    stop_reason: str = "stop"
    prompt_tokens: NDArray[np.int32] = field(default_factory=_no_tokens)
    output_tokens: NDArray[np.int32] = field(default_factory=_no_tokens)
    logprobs: NDArray[np.float32] | None = None
    loss_mask: NDArray[np.bool_] | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    logprob_sum: float | None = None
    old_logprobs: NDArray[np.float32] | float | None = None
    old_policy_version: str = ""
    ref_logprobs: NDArray[np.float32] | None = None
    token_rewards: NDArray[np.float32] | None = None
    weight_steps: NDArray[np.int64] | None = None
    token_arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    attachments: Mapping[str, bytes] = field(default_factory=dict)
    messages: tuple[Mapping[str, Any], ...] = ()

    def __repr__(self) -> str:
        """One line, however long the rollout is."""
        segment = f", segment {self.segment_idx}" if self.segment_idx else ""
        return (
            f"RolloutRecord({self.rollout_uid!r}{segment} of {self.environment}/"
            f"{self.example_id!r}: policy {self.policy_version!r}, tokens "
            f"{len(self.prompt_tokens):,} + {len(self.output_tokens):,}, reward {self.reward}, "
            f"{self.stop_reason})"
        )

    @property
    def actor_logprobs(self) -> NDArray[np.float32] | float | None:
        """``logprobs``, or their sum where it alone was published: the AIPO papers' name."""
        return self.logprob_sum if self.logprobs is None else self.logprobs

    @property
    def actor_policy_version(self) -> str:
        """``policy_version``: the AIPO papers' name."""
        return self.policy_version

    @property
    def rollout_metadata(self) -> RolloutMetadata:
        """Who made it, when, and with which weights."""
        return RolloutMetadata(self.worker_id, self.created_ts / 1e6, self.weight_step)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RolloutGroup:
    """A sealed group.

    Attributes:
        id: a function of the group's key and its members' sorted uids.
        policy_version: ``mixed`` where the members' differ.
        sealed_ts: log time up to which its partition was read when it was sealed, microseconds
            since 1970, UTC: a sealer that lags sealed it later.
        metadata: ``count``, ``uids`` and ``replicas`` (sorted), ``segment``.
    """

    id: str
    environment: str
    example_id: str
    policy_version: str
    rollouts: tuple[RolloutRecord, ...]
    sealed_ts: int
    metadata: Mapping[str, Any]

    def __repr__(self) -> str:
        """One line, however many rollouts it has."""
        return (
            f"RolloutGroup({self.id!r} of {self.environment}/{self.example_id!r}: policy "
            f"{self.policy_version!r}, rollouts {len(self.rollouts):,})"
        )

    @classmethod
    def of(cls, group_id: str, rollouts: Sequence[RolloutRecord], sealed_ts: int) -> Self:
        """The group of these members, of which there is at least one."""
        assert rollouts, group_id
        first = rollouts[0]
        versions = {rollout.policy_version for rollout in rollouts}
        return cls(
            id=group_id,
            environment=first.environment,
            example_id=first.example_id,
            policy_version=first.policy_version if len(versions) == 1 else MIXED_POLICY,
            rollouts=tuple(rollouts),
            sealed_ts=sealed_ts,
            metadata={
                "count": len(rollouts),
                "uids": sorted(rollout.rollout_uid for rollout in rollouts),
                "replicas": sorted({rollout.replica_id for rollout in rollouts}),
                "segment": first.segment_idx,
            },
        )


@dataclass(frozen=True, slots=True, repr=False)
class SampledBatch:
    """Which groups make a batch; ``ts``: when it was decided, microseconds since 1970, UTC."""

    batch_id: str
    group_ids: tuple[str, ...]
    ts: int

    def __repr__(self) -> str:
        """One line, however many groups it has."""
        return f"SampledBatch({self.batch_id!r}: groups {len(self.group_ids):,}, ts {self.ts})"


def records_from(columns: Columns) -> list[RolloutRecord]:
    """One record a row, in the order of rows; arrays are views.

    Raises:
        UnreadableEvent: ``metadata`` of a row is no JSON.
    """
    return [_record(columns, row) for row in range(columns.rows)]


def _record(columns: Columns, row: int) -> RolloutRecord:
    values: dict[str, Any] = {}
    for scalar in scalar_fields():
        column = columns.scalars[scalar.name]
        value = column[row].item() if isinstance(column, np.ndarray) else column[row]
        values[scalar.name] = None if isinstance(value, float) and isnan(value) else value
    for name in array_fields():
        ragged = columns.arrays.get(name)
        values[name] = None if ragged is None else ragged.row(row)
    whole = values.pop("old_logprob_sum")
    if whole is not None:
        values["old_logprobs"] = whole
    uid = values["rollout_uid"]
    values["metadata"] = _metadata(values["metadata"], uid)
    values["messages"] = _messages(values["messages"] or "[]")
    values["rewards"] = {} if columns.rewards is None else columns.rewards.row(row)
    values["attachments"] = {} if columns.attachments is None else dict(columns.attachments[row])
    values["token_arrays"] = {
        name: carried
        for name, ragged in columns.token_arrays.items()
        if (carried := ragged.row(row)) is not None
    }
    return RolloutRecord(**values)


def _metadata(text: str, uid: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UnreadableEvent("inconsistent", f"metadata of {uid}: {error}") from error


def _messages(text: str) -> tuple[Mapping[str, Any], ...]:
    """Sealers do not look into it, and it is for people alone: no reader fails over it."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, list) and all(isinstance(one, dict) for one in found):
        return tuple(found)
    return ({"role": "unreadable", "content": text},)
