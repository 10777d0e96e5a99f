"""Groups' rows joined into a batch, in one buffer. Pure."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.batch.batch import Batch, GroupReader
from rollstream.sampler.batch.decided import Decided
from rollstream.sampler.batch.joining import GroupRows, RowLayout
from rollstream.sampler.batch.requested import (
    ON_REQUEST,
    TOKEN_ARRAY,
    agreed_signatures,
    token_array_names,
)
from rollstream.sampler.batch.share import Share
from rollstream.sampler.batch.token_arrays import TokenArrays
from rollstream.sampler.batch.wanted import used_in
from rollstream.sampler.errors import SamplerError
from rollstream.schemas.columns import ArraySignature, Columns, Ragged
from rollstream.schemas.events import ServedScore
from rollstream.schemas.fields import array_fields
from rollstream.schemas.order import UNKNOWN_STEP, Branch

ALIGNMENT = 64  # Of each array, in bytes: a cache line, and what Ray gives a buffer.
_COMPONENT = "reward_components/"


class ArrayLayout(NamedTuple):
    """Where an array lies in a buffer; ``start`` in bytes."""

    dtype: str
    shape: tuple[int, ...]
    start: int


@dataclass(frozen=True, slots=True)
class AssembledBatch:
    """A batch but for what only the process knows that asked for it.

    It crosses to another process as one buffer and a small header; the batch's arrays are views of
    that buffer there.

    Attributes:
        buffer: uint8 [size].
        layout: of the arrays in it.
        others: the fields of ``Batch`` that are no arrays; of ``metadata`` the JSON texts.
        decided: those among them that follow from the decision and not from its rows.
        groups_ready: when it was asked for.
    """

    buffer: NDArray[np.uint8]
    layout: Mapping[str, ArrayLayout]
    others: Mapping[str, Any]
    decided: Decided
    groups_ready: int

    def batch(self, *, waited_s: float, read_group: GroupReader | None) -> Batch:
        """The batch; nothing is copied."""
        fields: dict[str, Any] = {
            **self.others,
            **self.decided.fields(),
            **_views(self.buffer, self.layout),
        }
        for prefix in (_COMPONENT, TOKEN_ARRAY):
            names = [name for name in fields if name.startswith(prefix)]
            named = {name.removeprefix(prefix): fields.pop(name) for name in names}
            fields[prefix.removesuffix("/")] = named
        fields["token_arrays"] = TokenArrays(fields["token_arrays"], fields.pop("refused"))
        if fields["metadata"] is not None:
            fields["metadata"] = tuple(map(json.loads, fields["metadata"]))
        ready = self.groups_ready
        return Batch(waited_s=waited_s, read_group=read_group, groups_ready=ready, **fields)


def assemble(
    share: Share,
    stored: Sequence[GroupRows],
    signatures_of: Callable[[str], Mapping[str, ArraySignature]],
) -> AssembledBatch:
    """Joins the groups of a share, in their order.

    Args:
        stored: the rows of the groups, also those that the decision leaves out.
        signatures_of: dtype and trailing shape of the named arrays of a file.
    """
    decided, columns = share.decided, share.columns
    parts = [part.only(share.masks.get(part.slot)) for part in stored]
    token_arrays, refused = _token_arrays(share, signatures_of)
    rows = [part.group.group.rows for part in parts]
    keys = tuple(chain.from_iterable(map(repeat, [part.group.key for part in parts], rows)))
    uids = _texts(parts, "rollout_uid")
    row_layout = RowLayout.of(parts)
    group_index = row_layout.groups
    trajectories = _trajectories(row_layout)
    scores = _scores(parts)
    own_rewards = _own_rewards(row_layout, scores)
    per_row: dict[str, NDArray[Any]] = {
        "offsets": row_layout.offsets,
        "prompt_lengths": row_layout.prompts.astype(np.int32),
        "rewards": _as_float32(_rewards(own_rewards, trajectories, group_index)),
        "group_index": group_index,
        "trajectory_index": trajectories,
        "trajectory_returns": _returns(own_rewards, trajectories),
        **_weights(row_layout, parts, decided.branches),
        **_components(parts, scores, len(uids)),
        **_numbers_asked_for(row_layout, parts, columns),
    }
    carried_stale = 0
    if decided.carried_groups:
        per_row["used"], carried_stale = used_in(decided, share.carried, parts, per_row)
    total = int(row_layout.offsets[-1])
    per_token = {
        name: (signature.dtype, (total, *signature.shape))
        for name, signature in _per_token(columns, token_arrays).items()
    }
    shapes = {name: (array.dtype.str, array.shape) for name, array in per_row.items()}
    layout, size = _one_after_the_other({**per_token, **shapes})
    buffer = _aligned(size)
    arrays = _views(buffer, layout)
    for name, array in per_row.items():
        arrays[name][...] = array
    for name in per_token:
        _fill(row_layout, name, arrays[name], per_row["weight_steps"])
    others = {
        "uids": uids,
        "environments": tuple([key.environment for key in keys]),
        "example_ids": tuple([key.example_id for key in keys]),
        "policy_versions": _policy_versions(parts),
        "stop_reasons": _texts(parts, "stop_reason"),
        "scores": scores,
        **_requested_texts(parts, columns, uids),
        "slots": tuple(part.slot for part in parts),
        "columns": columns,
        "carried_stale": carried_stale,
        "refused": refused,
        "dp_rank": share.dp_rank,
        "dp_size": share.dp_size,
    }
    return AssembledBatch(buffer, layout, others, decided, share.groups_ready)


def _token_arrays(
    share: Share, signatures_of: Callable[[str], Mapping[str, ArraySignature]]
) -> tuple[dict[str, ArraySignature], dict[str, SamplerError]]:
    """As ``agreed_signatures``, of the named arrays that were asked for."""
    names = token_array_names(share.columns)
    if not names:
        return {}, {}
    paths = share.decided.paths
    found = {path: signatures_of(path) for path in set(paths)}
    return agreed_signatures(names, [found[path] for path in paths])


def _placed(parts: Sequence[GroupRows]) -> Iterator[tuple[GroupRows, int]]:
    """Each group, with the first of its rows in the batch."""
    row = 0
    for part in parts:
        yield part, row
        row += part.group.group.rows


def _requested_texts(
    parts: Sequence[GroupRows], columns: Collection[str], uids: Sequence[str]
) -> dict[str, Sequence[str] | None]:
    """Texts of each row that are not in every batch; None where they were not asked for."""
    found: dict[str, Sequence[str] | None] = {
        name: _texts(parts, ON_REQUEST[name]) if name in columns else None
        for name in ("metadata", "group_uids", "worker_ids", "trajectory_uids")
    }
    named = found["trajectory_uids"]
    if named is not None:  # Of a rollout that was published whole, its uid.
        found["trajectory_uids"] = tuple(
            [name or uid for name, uid in zip(named, uids, strict=True)]
        )
    return found


def _weights(
    row_layout: RowLayout, parts: Sequence[GroupRows], branches: Mapping[str, Sequence[Branch]]
) -> dict[str, NDArray[Any]]:
    """Of each row, which weights sampled it, by numbers."""
    steps, epochs = row_layout.numbers("weight_step", np.int64), _policy_epochs(row_layout, parts)
    left = _off_branch(parts, steps, epochs, branches)
    return {"weight_steps": steps, "policy_epochs": epochs, "off_branch": left}


def _off_branch(
    parts: Sequence[GroupRows],
    steps: NDArray[np.int64],
    epochs: NDArray[np.int32],
    branches: Mapping[str, Sequence[Branch]],
) -> NDArray[np.bool_]:
    """Of each row, whether a resume went back to before the weights that sampled it."""
    marked = np.zeros(len(steps), np.bool_)
    if not any(branches.values()):
        return marked
    for part, row in _placed(parts):
        group = part.group.group
        rows = slice(row, row + group.rows)
        for branch in branches.get(group.lineage, ()):
            marked[rows] |= (steps[rows] > branch.from_step) & (epochs[rows] < branch.epoch)
    return marked


def _policy_epochs(row_layout: RowLayout, parts: Sequence[GroupRows]) -> NDArray[np.int32]:
    """Of each row; only of files whose rows differ the column was read."""
    of_groups = np.array([part.group.group.policy_epoch for part in parts], np.int32)
    found = of_groups[row_layout.groups]
    for columns, rows, stored in row_layout.sources:
        if "policy_epoch" in columns.scalars:
            epochs: Any = columns.scalars["policy_epoch"]
            found[rows] = epochs[stored]
    return found


def _policy_versions(parts: Sequence[GroupRows]) -> tuple[str, ...]:
    """Of each row; only of files whose rows differ the column was read."""
    found: list[str] = []
    for part in parts:
        if "policy_version" in part.columns.scalars:
            found += _texts([part], "policy_version")
        else:
            found += repeat(part.group.group.policy_version, part.group.group.rows)
    return tuple(found)


def _one_after_the_other(
    shapes: Mapping[str, tuple[str, tuple[int, ...]]],
) -> tuple[dict[str, ArrayLayout], int]:
    """Where arrays of these dtypes and shapes lie in a buffer, and its size."""
    layout, size = {}, 0
    for name, (dtype, shape) in shapes.items():
        layout[name] = ArrayLayout(dtype, shape, size)
        size += -(-np.dtype(dtype).itemsize * math.prod(shape) // ALIGNMENT) * ALIGNMENT
    return layout, size


def _per_token(
    columns: Collection[str], token_arrays: Mapping[str, ArraySignature]
) -> dict[str, ArraySignature]:
    """The arrays of the batch that have a value for each token; the named ones last."""
    dtypes = {"tokens": "<i4", "loss_mask": "|b1", "logprobs": "<f4"}
    for name in columns:
        dtype = array_fields().get(ON_REQUEST.get(name, ""))
        if dtype is not None:
            dtypes[name] = dtype
    arrays = {name: ArraySignature(dtype, ()) for name, dtype in dtypes.items()}
    return arrays | {TOKEN_ARRAY + name: of for name, of in sorted(token_arrays.items())}


def _fill(
    row_layout: RowLayout, name: str, out: NDArray[Any], weight_steps: NDArray[np.int64]
) -> None:
    """Fills an array that has a value for each token."""
    if name == "tokens":
        row_layout.copy(out, partial(_array_of, "prompt_tokens"), to_prompts=True)
        row_layout.copy(out, partial(_array_of, "output_tokens"))
        return
    prompt: Any = 0
    output: Any = np.nan if np.issubdtype(out.dtype, np.inexact) else 0  # Of rows without.
    match name:
        case "loss_mask":
            prompt, output = False, True
        case "logprobs":
            # Few rows have none: setting theirs afterwards is cheaper than NaN for all before.
            row_layout.fill(out, 0, 0)
            for row in row_layout.copy(out, partial(_array_of, name)):
                end = row_layout.offsets[row + 1]
                out[end - row_layout.outputs[row] : end] = np.nan
            return
        case "token_weight_steps":
            prompt, output = UNKNOWN_STEP, weight_steps
    row_layout.fill(out, prompt, output)
    row_layout.copy(out, partial(_array_of, name))


def _array_of(name: str, columns: Columns) -> Ragged | None:
    """The file's array of which the batch's array of this name is made."""
    if name.startswith(TOKEN_ARRAY):
        return columns.token_arrays.get(name.removeprefix(TOKEN_ARRAY))
    return columns.arrays.get(ON_REQUEST.get(name, name))


def _texts(parts: Sequence[GroupRows], name: str) -> tuple[str, ...]:
    """A text of each row."""
    of_groups: Any = [part.columns.scalars[name][slice(*part.span)] for part in parts]
    return tuple(chain.from_iterable(of_groups))


def _own_rewards(row_layout: RowLayout, scores: Mapping[int, ServedScore]) -> NDArray[np.float64]:
    """What each row was published with, or was scored with later."""
    rewards: NDArray[np.float64] = row_layout.numbers("reward", np.float64)
    for row, score in scores.items():
        rewards[row] = score.reward
    return rewards


def _scores(parts: Sequence[GroupRows]) -> dict[int, ServedScore]:
    """By row of the batch, the late score that it has."""
    each = (
        (first + score.row, score) for part, first in _placed(parts) for score in part.group.scores
    )
    return dict(each)


def _trajectories(row_layout: RowLayout) -> NDArray[np.int32]:
    """A number of each row, from 0: one a trajectory, whose rows lie together and begin with the
    first segment. Its rollouts may have several uids."""
    begins = row_layout.numbers("segment_idx", np.int32) == 0
    begins |= np.diff(row_layout.groups, prepend=-1) != 0
    return np.cumsum(begins, dtype=np.int32) - 1


def _logprob_sums(row_layout: RowLayout, parts: Sequence[GroupRows]) -> NDArray[np.float32]:
    """float32 [n]: as published, else the sum of what was published for each token."""
    sums: NDArray[np.float64] = row_layout.numbers("logprob_sum", np.float64)
    for part, first in _placed(parts):
        of_tokens = part.columns.arrays.get("logprobs")
        for at, row in enumerate(range(*part.span), first):
            values = None if of_tokens is None else of_tokens.row(row)
            if np.isnan(sums[at]) and values is not None:
                sums[at] = values.sum(dtype=np.float64)
    return _as_float32(sums)


def _numbers_asked_for(
    row_layout: RowLayout, parts: Sequence[GroupRows], columns: Collection[str]
) -> dict[str, NDArray[Any]]:
    """Of each row, those among ``columns``."""
    found: dict[str, NDArray[Any]] = {}
    if "logprob_sums" in columns:
        found["logprob_sums"] = _logprob_sums(row_layout, parts)
    if "created_ts" in columns:
        found["created_ts"] = row_layout.numbers("created_ts", np.int64)
    return found


def _rewards(
    own: NDArray[np.float64], trajectories: NDArray[np.int32], groups: NDArray[np.int32]
) -> NDArray[np.float64]:
    """float64 [n]: where one segment of a trajectory has a reward, those before it have it too: a
    reward is often known at the last segment only. Where several have one, the others have 0, so
    that they sum to what the trajectory earned. Where the last one has none, none is given.
    """
    missing = np.flatnonzero(np.isnan(own))
    if not missing.size:
        return own
    rewards = own.copy()
    follows = (np.diff(trajectories) == 0) & (np.diff(groups) == 0)
    for row in missing[::-1].tolist():  # A member's rows lie together, in the order of segments.
        if row < len(follows) and follows[row]:
            rewards[row] = rewards[row + 1]
    filled = missing[~np.isnan(rewards[missing])]
    several = np.bincount(trajectories, ~np.isnan(own)) > 1
    rewards[filled[several[trajectories[filled]]]] = 0.0
    return rewards


def _returns(own: NDArray[np.float64], trajectories: NDArray[np.int32]) -> NDArray[np.float32]:
    """float32 [m]: what the segments of each trajectory earned, summed; infinite where float32 has
    no room for it."""
    return _as_float32(np.bincount(trajectories, np.nan_to_num(own)))


def _as_float32(numbers: NDArray[Any]) -> NDArray[np.float32]:
    """``groups_beyond_float32`` finds what becomes infinite."""
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)


def _components(
    parts: Sequence[GroupRows], scores: Mapping[int, ServedScore], rows: int
) -> dict[str, NDArray[np.float32]]:
    """float32 [n] of each reward component that a row has, late ones before published ones; NaN
    where a row has none."""
    found: defaultdict[str, list[float]] = defaultdict(lambda: [np.nan] * rows)
    for part, first in _placed(parts):
        start, stop = part.span
        if (components := part.columns.rewards) is not None:
            ends = components.offsets[start : stop + 1].tolist()
            span = slice(ends[0], ends[-1])
            names = [components.names[index] for index in components.indexes[span].tolist()]
            values = zip(names, components.values[span].tolist(), strict=True)
            for at, count in enumerate(map(int.__sub__, ends[1:], ends), first):
                for name, value in islice(values, count):
                    found[name][at] = value
    for row, score in scores.items():
        for name, value in score.rewards.items():
            found[name][row] = value
    return {_COMPONENT + name: _as_float32(np.array(found[name])) for name in sorted(found)}


def _aligned(size: int) -> NDArray[np.uint8]:
    """A buffer [size] with arbitrary contents."""
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % ALIGNMENT
    return memory[start : start + size]


def _views(buffer: NDArray[np.uint8], layout: Mapping[str, ArrayLayout]) -> dict[str, NDArray[Any]]:
    """The arrays of a buffer, by name; nothing is copied."""
    return {
        name: np.ndarray(shape, dtype, buffer, start)
        for name, (dtype, shape, start) in layout.items()
    }
