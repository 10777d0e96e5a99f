"""Groups' rows joined into a batch: one copy of each token, none touched by Python. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.errors import InvalidRequest
from rollstream.sampler.shaping.batch import Batch, GroupReader
from rollstream.sampler.shaping.scratch import Fresh, Scratch
from rollstream.schemas.columns import Columns, Ragged
from rollstream.schemas.records import SampledBatch, token_array
from rollstream.streams.folds.sampler.known import KnownGroup
from rollstream.streams.folds.sampler.served import ServedBatch

FIELDS = ("prompt_tokens", "output_tokens", "logprobs", "loss_mask", "rewards", "token_arrays")
"""The columns that a batch reads from the store; all others of its fields are in the seal log."""


class GroupRows(NamedTuple):
    """A group, its slot in the batch, and the columns of its file."""

    slot: int
    group: KnownGroup
    columns: Columns

    @property
    def rows(self) -> range:
        """The group's rows among the columns."""
        start = self.group.group.row_start
        return range(start, start + self.group.group.rows)

    @property
    def in_flush(self) -> slice:
        """The same rows among all segments of the group's flush."""
        return slice(self.group.first, self.group.first + self.group.group.rows)


class AssembledBatch(Protocol):
    """Makes the batch, given what only the process knows that asked for it."""

    def __call__(self, *, waited_s: float, read_group: GroupReader | None) -> Batch: ...


def assemble(
    served: ServedBatch,
    parts: Sequence[GroupRows],
    *,
    memory: Scratch | Fresh,
    dp_rank: int = 0,
    dp_size: int = 1,
    groups_ready: int,
) -> AssembledBatch:
    """Joins these groups, in their order; tokens, masks and log-probs in ``memory``."""
    event = served.event
    lengths = _Lengths.of(parts)
    tokens, loss_mask, logprobs = _per_token(parts, lengths, memory)
    uids = tuple(uid for p in parts for uid in p.group.segments.uids[p.in_flush])
    rows = [p.group.group.rows for p in parts]
    return partial(
        Batch,
        step=event.step,
        batch_id=event.batch_id,
        digest=served.digest,
        tokens=tokens,
        offsets=lengths.offsets,
        prompt_lengths=lengths.prompts.astype(np.int32),
        loss_mask=loss_mask,
        logprobs=logprobs,
        rewards=_joined([p.group.segments.rewards[p.in_flush] for p in parts], np.float32),
        reward_components=_components(parts, len(uids)),
        group_index=np.repeat(np.arange(len(parts), dtype=np.int32), rows),
        trajectory_index=_trajectories(uids),
        uids=uids,
        weight_steps=_joined([p.group.segments.weight_steps[p.in_flush] for p in parts], np.int64),
        environments=tuple(
            name for p in parts for name in (p.group.key.environment,) * p.group.group.rows
        ),
        stop_reasons=tuple(reason for p in parts for reason in _stop_reasons(p)),
        token_arrays=_token_arrays(parts, lengths),
        sampled=SampledBatch(
            event.batch_id, tuple(group.group_id for group in served.groups), event.now_ts
        ),
        slots=tuple(p.slot for p in parts),
        dp_rank=dp_rank,
        dp_size=dp_size,
        policy_step=event.policy_step,
        groups_ready=groups_ready,
    )


class _Lengths(NamedTuple):
    """Of every rollout of the batch, int64 [n]; ``offsets`` [n + 1]."""

    prompts: NDArray[np.int64]
    outputs: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, parts: Sequence[GroupRows]) -> _Lengths:
        prompts = _joined([_row_lengths(p, "prompt_tokens") for p in parts], np.int64)
        outputs = _joined([_row_lengths(p, "output_tokens") for p in parts], np.int64)
        offsets = np.zeros(len(prompts) + 1, np.int64)
        np.cumsum(prompts + outputs, out=offsets[1:])
        return cls(prompts, outputs, offsets)


def _per_token(
    parts: Sequence[GroupRows], lengths: _Lengths, memory: Scratch | Fresh
) -> tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.float32]]:
    total = int(lengths.offsets[-1])
    tokens = memory.take("tokens", total, np.int32)
    loss_mask = memory.take("loss_mask", total, np.bool_)
    logprobs = memory.take("logprobs", total, np.float32)
    starts = lengths.offsets[:-1].tolist()
    middles = (lengths.offsets[:-1] + lengths.prompts).tolist()
    ends = lengths.offsets[1:].tolist()
    rollout = 0
    for part in parts:
        arrays = part.columns.arrays
        first, end = part.rows.start, part.rows.stop
        prompts, outputs = arrays["prompt_tokens"], arrays["output_tokens"]
        prompt_at = prompts.offsets[first : end + 1].tolist()
        output_at = outputs.offsets[first : end + 1].tolist()
        sampled_at, sampled = _present(arrays.get("logprobs"), first, end)
        masked_at, masks = _present(arrays.get("loss_mask"), first, end)
        for row in range(end - first):
            start, middle, stop = starts[rollout], middles[rollout], ends[rollout]
            tokens[start:middle] = prompts.values[prompt_at[row] : prompt_at[row + 1]]
            tokens[middle:stop] = outputs.values[output_at[row] : output_at[row + 1]]
            loss_mask[start:middle] = False
            logprobs[start:middle] = 0
            if sampled_at is not None and sampled_at[row] is not None:
                at = sampled_at[row]
                logprobs[middle:stop] = sampled[at : at + stop - middle]
            else:
                logprobs[middle:stop] = 0
            if masked_at is not None and masked_at[row] is not None:
                at = masked_at[row]
                loss_mask[middle:stop] = masks[at : at + stop - middle]
            else:
                loss_mask[middle:stop] = True
            rollout += 1
    return tokens, loss_mask, logprobs


def _present(ragged: Ragged | None, first: int, end: int) -> tuple[list[Any] | None, NDArray[Any]]:
    """Where each row begins among the values; None: the row has none. No list: no row has any."""
    if ragged is None:
        return None, np.empty(0)
    starts: list[Any] = ragged.offsets[first:end].tolist()
    if ragged.present is not None:
        present = ragged.present[first:end].tolist()
        starts = [at if there else None for at, there in zip(starts, present, strict=True)]
    return starts, ragged.values


def _row_lengths(part: GroupRows, name: str) -> NDArray[np.int64]:
    return np.diff(part.columns.arrays[name].offsets[part.rows.start : part.rows.stop + 1])


def _joined(pieces: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    if not pieces:
        return np.empty(0, dtype)
    return np.concatenate(pieces).astype(dtype, copy=False)


def _stop_reasons(part: GroupRows) -> list[str]:
    reasons = part.group.segments.stop_reasons
    return [reasons[i] for i in part.group.segments.stop_reason_idxs[part.in_flush].tolist()]


def _trajectories(uids: Sequence[str]) -> NDArray[np.int32]:
    """The same number for the same uid, from 0 in the order of first sight."""
    numbers: dict[str, int] = {}
    return np.fromiter((numbers.setdefault(u, len(numbers)) for u in uids), np.int32, len(uids))


def _each(parts: Sequence[GroupRows], name: str) -> Iterator[tuple[int, Any]]:
    """The values of a column, with the index in the batch of the rollout that each belongs to."""
    each = (p.columns.scalars[name][p.rows.start : p.rows.stop] for p in parts)
    return enumerate(chain.from_iterable(each))


def _components(parts: Sequence[GroupRows], rollouts: int) -> dict[str, NDArray[np.float32]]:
    components: dict[str, NDArray[np.float32]] = {}
    for at, rewards in _each(parts, "rewards"):
        for name, value in rewards.items():
            if name not in components:
                components[name] = np.full(rollouts, np.nan, np.float32)
            components[name][at] = value
    return dict(sorted(components.items()))


def _token_arrays(parts: Sequence[GroupRows], lengths: _Lengths) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    middles = lengths.offsets[:-1] + lengths.prompts
    for at, carried in _each(parts, "token_arrays"):
        for array in carried:
            values = token_array(array, int(lengths.outputs[at]))
            name = array["name"]
            if name not in arrays:
                shape = (int(lengths.offsets[-1]), *values.shape[1:])
                arrays[name] = np.zeros(shape, values.dtype)
            joined = arrays[name]
            if (joined.dtype, joined.shape[1:]) != (values.dtype, values.shape[1:]):
                raise InvalidRequest(
                    f"token array {name!r} is {joined.dtype} [n, *{joined.shape[1:]}] in some "
                    f"rollouts of this batch and {values.dtype} [n, *{values.shape[1:]}] in "
                    "others; publish it under two names, or resume(…, later='release') and "
                    "ask for batches of one environment with mix"
                )
            joined[middles[at] : lengths.offsets[at + 1]] = values
    return dict(sorted(arrays.items()))
