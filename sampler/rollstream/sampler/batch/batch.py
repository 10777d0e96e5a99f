"""``Batch``: the rollouts of a step as packed arrays. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.arguments import whole_number
from rollstream.sampler.batch.padded import Padded, PaddedLayout
from rollstream.sampler.batch.tensors import NamedArrays
from rollstream.sampler.batch.token_arrays import TokenArrays
from rollstream.sampler.errors import InvalidRequest, RowsOutOfReach
from rollstream.schemas.events import ServedScore
from rollstream.schemas.records import RolloutGroup, RolloutRecord, SampledBatch

GroupReader = Callable[[int, bytes, int], RolloutGroup]  # Called with step, digest and slot.
TRUNCATED = "length"  # The stop reason of a rollout that ran into its limit.
_LAG_BINS = {  # Each up to this many steps, beyond those of the one before.
    **{"lag/0": 0.0, "lag/1": 1.0, "lag/2": 2.0, "lag/3-4": 4.0, "lag/5-8": 8.0},
    "lag/over-8": np.inf,
}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class Batch(NamedArrays):
    """The rollouts of one step, or a data-parallel rank's share of them.

    The same step of the same trainer epoch gives the same bytes. A row is a segment: a rollout of
    one turn is one row, and a trajectory has one row for each of its segments. Row ``i`` is
    ``tokens[offsets[i]:offsets[i + 1]]``, prompt first. The rows of a group are adjacent. n is the
    number of rows, m of trajectories, and total the number of tokens. ``to_torch()`` and
    ``to_jax()`` give every array.

    Attributes:
        step: the batch turns weights ``step`` into weights ``step + 1``.
        batch_id: of the recorded batch, the same for every rank; ``replace`` gives a new one.
        digest: of the recorded batch.
        tokens: int32 [total].
        offsets: int64 [n + 1].
        prompt_lengths: int32 [n].
        loss_mask: bool [total]; False at prompts, and where the segment's own mask is False.
        logprobs: float32 [total], under the policy that sampled; 0 at prompts, NaN at the output of
            a segment that was published without any. No ratio is made up.
        rewards: float32 [n], of each segment. If only the last segment of a trajectory has one,
            each of its rows has that one; if several have one, a row without one has 0.
        reward_components: name to float32 [n]; NaN where a segment has none of that name.
        group_index: int32 [n]; which group of this batch, from 0.
        trajectory_index: int32 [n]; segments of one trajectory share it, from 0.
        trajectory_returns: float32 [m], the sum of what the segments of each were published with;
            infinite where float32 has no room for it.
        uids: [n], the rollout_uid of each row; segments of one trajectory share it. Of a step it
            is ``rollstream.schemas.ids.step_rollout_uid``.
        weight_steps: int64 [n], optimizer steps behind the weights that sampled; -1: not known.
        policy_epochs: int32 [n], the policy epoch of those weights. After a rewind, the same step
            names other weights.
        off_branch: bool [n], sampled by weights that a resume gave up; False everywhere unless
            ``off_branch = "keep"``.
        environments: [n].
        example_ids: [n].
        policy_versions: [n], of the weights that sampled, as the producer named them.
        stop_reasons: [n].
        token_arrays: name to [total, …], the named arrays that ``columns`` asked for. 0 at prompts;
            where a segment has none, NaN in floats and 0 in others. Access raises ``ArraysDiffer``
            if groups differ in dtype or shape, and ``ArrayMissing`` (a ``KeyError``) if no group
            has the name.
        scores: by row, the late score of its reward and components, with scorer, version and flags.
            Rows without one have what they were published with.
        old_logprobs: float32 [total], the trainer's recomputation; 0 at prompts, NaN where a
            segment has none for each token. None, here and below: ``columns`` did not ask for it.
        ref_logprobs: float32 [total], under the reference policy; likewise.
        token_rewards: float32 [total]; likewise.
        logprob_sums: float32 [n], the log-prob of each segment's whole output: as published, else
            the sum of ``logprobs``; NaN: neither is known.
        token_weight_steps: int64 [total], ``weight_steps`` of each output token; -1 at prompts, and
            where it is not known.
        metadata: [n], what the producer gave.
        group_uids: [n], the producer's name of the group; empty where it named none.
        worker_ids: [n], the process that published each row.
        created_ts: int64 [n], when it was published by that process's clock, in microseconds since
            1970, UTC; 0: a client of another language gave none.
        trajectory_uids: [n], the trajectory of each row as the writer of its steps named it; of a
            rollout that was published whole, its uid.
        used: bool [m], trajectories of carried groups that are not to be trained on again. They are
            here for their group's returns. None: nothing is carried.
        carried_groups: how many of the groups, the last ones, the step before had, too.
        carried_stale: trajectories that an earlier step kept and that are now too old or off the
            branch, so nobody trains on them.
        sampled: the whole recorded batch: its id, its groups, when it was decided.
        slots: of this batch's groups in the recorded batch.
        columns: that were asked for.
        dp_rank: the rank whose share this is.
        dp_size: how many ranks share the recorded batch.
        policy_step: the newest policy of the branch when the batch was decided; -1: none was
            published.
        algorithm: the version of the sampler's rules that decided the step.
        current_step: as ``set_current_step`` named it; else ``step``.
        groups_ready: groups that were left ready when this call was answered.
        waited_s: seconds that the call for this batch took.
        read_group: reads a group of the recorded batch; None in a copy of the batch.
    """

    step: int
    batch_id: str
    digest: bytes
    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]
    prompt_lengths: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    rewards: NDArray[np.float32]
    reward_components: Mapping[str, NDArray[np.float32]]
    group_index: NDArray[np.int32]
    trajectory_index: NDArray[np.int32]
    trajectory_returns: NDArray[np.float32]
    uids: tuple[str, ...]
    weight_steps: NDArray[np.int64]
    policy_epochs: NDArray[np.int32]
    off_branch: NDArray[np.bool_]
    environments: tuple[str, ...]
    example_ids: tuple[str, ...]
    policy_versions: tuple[str, ...]
    stop_reasons: tuple[str, ...]
    token_arrays: TokenArrays
    scores: Mapping[int, ServedScore] = field(default_factory=dict)
    old_logprobs: NDArray[np.float32] | None = None
    ref_logprobs: NDArray[np.float32] | None = None
    token_rewards: NDArray[np.float32] | None = None
    token_weight_steps: NDArray[np.int64] | None = None
    logprob_sums: NDArray[np.float32] | None = None
    metadata: tuple[Mapping[str, Any], ...] | None = None
    group_uids: tuple[str, ...] | None = None
    worker_ids: tuple[str, ...] | None = None
    created_ts: NDArray[np.int64] | None = None
    trajectory_uids: tuple[str, ...] | None = None
    used: NDArray[np.bool_] | None = None
    carried_groups: int = 0
    carried_stale: int = 0
    sampled: SampledBatch
    slots: tuple[int, ...]
    columns: tuple[str, ...]
    dp_rank: int
    dp_size: int
    policy_step: int
    algorithm: int
    current_step: int
    groups_ready: int
    waited_s: float
    read_group: GroupReader | None

    def __repr__(self) -> str:
        """One line, however large the batch is."""
        share = f", rank {self.dp_rank} of {self.dp_size}" if self.dp_size > 1 else ""
        environments = ", ".join(sorted(set(self.environments)))
        rows = ""
        if len(self):
            rows = f", mean reward {self.trajectory_returns.mean():.4g}, of {environments}"
        return (
            f"Batch(step {self.step}{share}: groups {len(self.slots):,}, rows {len(self):,}, "
            f"tokens {len(self.tokens):,}{rows})"
        )

    def __len__(self) -> int:
        """The number of rows: of segments, not of trajectories."""
        return len(self.uids)

    @property
    def num_trajectories(self) -> int:
        """The number of trajectories in this batch (a rank's share), whatever number of segments
        each has.
        """
        return len(self.trajectory_returns)

    @property
    def num_groups(self) -> int:
        """The number of groups in this batch (a rank's share)."""
        return len(self.slots)

    def padded(self, length: int, pad_id: int, *, layout: PaddedLayout = "sequence") -> Padded:
        """Returns the rollouts as rectangles of ``length`` columns. Nothing is ever cut off.

        Raises:
            InvalidRequest: a rollout does not fit, the layout is unknown, or ``pad_id`` is no
                token.
        """
        return Padded.of(self, length, pad_id, layout)

    def __getstate__(self) -> list[Any]:
        """All fields but ``read_group``, which asks a sampler that other processes do not have."""
        return [None if f.name == "read_group" else getattr(self, f.name) for f in fields(self)]

    def records(self, group: SupportsIndex) -> list[RolloutRecord]:
        """Returns the segments of one of this batch's groups with all fields; see ``group``."""
        return list(self.group(group).rollouts)

    def group(self, group: SupportsIndex) -> RolloutGroup:
        """Returns one of this batch's groups with all fields that were published, from the store.

        It works in the process that asked for the batch, and not in a copy sent elsewhere.

        Args:
            group: its index in this batch, from 0, as in ``group_index``.

        Raises:
            InvalidRequest: the batch has no such group.
            RowsOutOfReach: the batch was copied out of the process that asked for it.
        """
        slot = self.slot_of(group)
        if self.read_group is None:
            raise RowsOutOfReach(
                "this batch was copied out of the process that asked the sampler for it; ask for "
                f"next_batch({self.step}) here and read the group from that"
            )
        return self.read_group(self.step, self.digest, slot)

    def slot_of(self, group: SupportsIndex) -> int:
        """Returns the slot in the recorded batch of one of this batch's groups; errors as
        ``group``.
        """
        index = whole_number("group", group)
        if not 0 <= index < len(self.slots):
            raise InvalidRequest(
                f"group {index} is none of this batch's {len(self.slots)}; they count from 0"
            )
        return self.slots[index]

    def metrics(self) -> dict[str, float]:
        """Returns a flat dict for any logger. A trajectory counts once.

        ``reward/mean`` and ``reward/<environment>``: of trajectories' returns. ``groups``,
        ``rollouts`` (trajectories), ``segments``, ``tokens``, ``output_tokens``.
        ``all_equal_share``: of groups whose returns leave no advantage. ``truncated_share`` of
        rollouts, by their last segment. ``off_branch_share`` of rollouts, by any segment.
        ``carried_stale``, ``groups_ready``, ``wait_s``.

        Lag in optimizer steps, from a rollout's oldest segment to the weights that this batch
        updates: ``lag/mean``, ``lag/p50``, ``lag/max``, and the number of rollouts with ``lag/0``
        (or less, by another trainer's steps), ``lag/1``, ``lag/2``, ``lag/3-4``, ``lag/5-8``,
        ``lag/over-8``. Rollouts of an unknown weight step are in none.
        """
        metrics: dict[str, float] = {
            "groups": float(len(self.slots)),
            "rollouts": float(self.num_trajectories),
            "segments": float(len(self)),
            "tokens": float(len(self.tokens)),
            "output_tokens": float(len(self.tokens) - int(self.prompt_lengths.sum())),
            "carried_stale": float(self.carried_stale),
            "groups_ready": float(self.groups_ready),
            "wait_s": self.waited_s,
        }
        if not self.uids:
            return metrics
        returns = self.trajectory_returns
        last = np.empty(self.num_trajectories, np.int64)  # The last row of each trajectory.
        last[self.trajectory_index] = np.arange(len(self))
        metrics["reward/mean"] = float(returns.mean())
        environments = np.asarray(self.environments)[last]
        for name in sorted(set(self.environments)):
            metrics[f"reward/{name}"] = float(returns[environments == name].mean())
        starts = np.flatnonzero(np.diff(self.group_index[last], prepend=-1))
        lowest, highest = (of.reduceat(returns, starts) for of in (np.minimum, np.maximum))
        metrics["all_equal_share"] = float((lowest == highest).mean())
        metrics["truncated_share"] = float(
            np.mean([self.stop_reasons[row] == TRUNCATED for row in last.tolist()])
        )
        left = np.unique(self.trajectory_index[self.off_branch])
        metrics["off_branch_share"] = len(left) / self.num_trajectories
        newest = max(self.current_step, self.policy_step)
        known = self.weight_steps >= 0
        lags = np.full(self.num_trajectories, -np.inf)
        np.maximum.at(lags, self.trajectory_index[known], newest - self.weight_steps[known])
        lags = lags[np.isfinite(lags)]
        if len(lags):
            metrics["lag/mean"] = float(lags.mean())
            metrics["lag/p50"] = float(np.median(lags))
            metrics["lag/max"] = float(lags.max())
            bins = np.searchsorted(list(_LAG_BINS.values()), lags)
            counts = np.bincount(bins, minlength=len(_LAG_BINS)).astype(float)
            metrics.update(zip(_LAG_BINS, counts.tolist(), strict=True))
        return metrics


def a_batch(value: Any) -> Batch:
    """The value, which is a batch; ``InvalidRequest`` where it is none."""
    if not isinstance(value, Batch):
        raise InvalidRequest(f"batch is {value!r:.200}; give the Batch that next_batch returned")
    return value
