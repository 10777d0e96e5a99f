"""Groups' rows joined into a batch, in one buffer. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.shaping.batch import Batch, GroupReader
from rollstream.sampler.shaping.packing import Packing, RowSpan
from rollstream.sampler.shaping.requested import ON_REQUEST, TOKEN_ARRAY
from rollstream.sampler.shaping.scratch import ArrayLayout, Fresh, Scratch, laid_out, views
from rollstream.schemas.columns import ArraySignature, Columns, Ragged
from rollstream.schemas.fields import array_fields
from rollstream.schemas.order import UNKNOWN_STEP
from rollstream.schemas.records import SampledBatch
from rollstream.streams.folds.sampler.known import KnownGroup
from rollstream.streams.folds.sampler.served import ServedBatch

_COMPONENT = "reward_components/"


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


@dataclass(frozen=True, slots=True)
class AssembledBatch:
    """A batch but for what only the process knows that asked for it.

    It crosses to another process as one buffer and a small header; the batch's arrays are views of
    that buffer there.

    Attributes:
        buffer: uint8 [size].
        layout: of the arrays in it.
        metadata: JSON, one a row; None: not asked for.
        others: the fields of ``Batch`` that are no arrays.
    """

    buffer: NDArray[np.uint8]
    layout: Mapping[str, ArrayLayout]
    metadata: Sequence[str] | None
    others: Mapping[str, Any]

    def batch(self, *, waited_s: float, read_group: GroupReader | None) -> Batch:
        """The batch; nothing is copied."""
        arrays: dict[str, Any] = views(self.buffer, self.layout)
        return Batch(
            reward_components=_taken(arrays, _COMPONENT),
            token_arrays=_taken(arrays, TOKEN_ARRAY),
            metadata=None if self.metadata is None else tuple(map(json.loads, self.metadata)),
            waited_s=waited_s,
            read_group=read_group,
            **self.others,
            **arrays,
        )


def assemble(
    served: ServedBatch,
    parts: Sequence[GroupRows],
    *,
    memory: Scratch | Fresh,
    columns: Collection[str] = (),
    token_arrays: Mapping[str, ArraySignature] | None = None,
    dp_rank: int = 0,
    dp_size: int = 1,
    groups_ready: int,
) -> AssembledBatch:
    """Joins these groups, in their order, in ``memory``.

    Args:
        columns: that the batch is to have besides.
        token_arrays: dtype and trailing shape of those among ``columns``.
    """
    event = served.event
    spans = [RowSpan(p.columns, p.rows.start, p.rows.stop) for p in parts]
    packing = Packing.of(spans)
    rows = [span.stop - span.start for span in spans]
    logged = _Logged.of(parts)
    per_row: dict[str, NDArray[Any]] = {
        "offsets": packing.offsets,
        "prompt_lengths": packing.prompts.astype(np.int32),
        "rewards": logged.rewards,
        "group_index": np.repeat(np.arange(len(parts), dtype=np.int32), rows),
        "trajectory_index": _trajectories(logged.uids),
        "weight_steps": logged.weight_steps,
        **{_COMPONENT + name: values for name, values in _components(spans, rows).items()},
    }
    wanted = {"tokens": ArraySignature("<i4", ()), "loss_mask": ArraySignature("|b1", ())}
    wanted["logprobs"] = ArraySignature("<f4", ())
    for name in columns:
        if (dtype := array_fields().get(ON_REQUEST.get(name, ""))) is not None:
            wanted[name] = ArraySignature(dtype, ())
    for name, signature in sorted((token_arrays or {}).items()):
        wanted[TOKEN_ARRAY + name] = signature
    total = int(packing.offsets[-1])
    layout, size = laid_out(
        {name: (dtype, (total, *shape)) for name, (dtype, shape) in wanted.items()}
        | {name: (array.dtype.str, array.shape) for name, array in per_row.items()}
    )
    buffer = memory.take(size)
    arrays = views(buffer, layout)
    for name, array in per_row.items():
        arrays[name][...] = array
    _pack(packing, {name: arrays[name] for name in wanted}, per_row["weight_steps"])
    return AssembledBatch(
        buffer,
        layout,
        _metadata(spans) if "metadata" in columns else None,
        {
            "step": event.step,
            "batch_id": event.batch_id,
            "digest": served.digest,
            "uids": logged.uids,
            "environments": logged.environments,
            "stop_reasons": logged.stop_reasons,
            "sampled": SampledBatch(
                event.batch_id, tuple(group.group_id for group in served.groups), event.now_ts
            ),
            "slots": tuple(p.slot for p in parts),
            "columns": tuple(columns),
            "dp_rank": dp_rank,
            "dp_size": dp_size,
            "policy_step": event.policy_step,
            "groups_ready": groups_ready,
        },
    )


def _pack(
    packing: Packing, arrays: Mapping[str, NDArray[Any]], weight_steps: NDArray[np.int64]
) -> None:
    """Fills the arrays that have a value for each token."""
    # Of prompts, and of outputs of rows that have no array of their own.
    runs = {
        "loss_mask": (False, True),
        "logprobs": (0, 0),
        "token_weight_steps": (UNKNOWN_STEP, weight_steps),
    }
    for name, out in arrays.items():
        of = partial(_array_of, name)
        absent = np.nan if np.issubdtype(out.dtype, np.inexact) else 0
        if name == "tokens":
            packing.copy(out, partial(_array_of, "prompt_tokens"), to_prompts=True)
            packing.copy(out, partial(_array_of, "output_tokens"))
        elif out.ndim == 1:
            packing.fill(out, *runs.get(name, (0, absent)))
            packing.copy(out, of)
        else:  # Wide: no byte is written twice.
            packing.copy(out, lambda columns: None, absent=0, to_prompts=True)
            packing.copy(out, of, absent=absent)


def _array_of(name: str, columns: Columns) -> Ragged | None:
    """The file's array of which the batch's array of this name is made."""
    if name.startswith(TOKEN_ARRAY):
        return columns.token_arrays.get(name.removeprefix(TOKEN_ARRAY))
    return columns.arrays.get(ON_REQUEST.get(name, name))


class _Logged(NamedTuple):
    """What the seal log has of each row; rewards float32 [n], weight steps int64 [n]."""

    uids: tuple[str, ...]
    environments: tuple[str, ...]
    stop_reasons: tuple[str, ...]
    rewards: NDArray[np.float32]
    weight_steps: NDArray[np.int64]

    @classmethod
    def of(cls, parts: Sequence[GroupRows]) -> _Logged:
        uids: list[str] = []
        environments: list[str] = []
        reasons: list[str] = []
        rewards: list[NDArray[Any]] = [np.empty(0)]
        steps: list[NDArray[Any]] = [np.empty(0, np.int64)]
        for part in parts:
            group = part.group
            segments, rows = group.segments, slice(group.first, group.first + group.group.rows)
            uids += segments.uids[rows]
            environments += [group.key.environment] * group.group.rows
            rewards.append(segments.rewards[rows])
            steps.append(segments.weight_steps[rows])
            indexes = segments.stop_reason_idxs[rows].tolist()
            reasons += [segments.stop_reasons[i] for i in indexes]
        return cls(
            tuple(uids),
            tuple(environments),
            tuple(reasons),
            np.concatenate(rewards).astype(np.float32),
            np.concatenate(steps),
        )


def _trajectories(uids: Sequence[str]) -> NDArray[np.int32]:
    """The same number for the same uid, from 0 in the order of first sight."""
    numbers: dict[str, int] = {}
    return np.fromiter([numbers.setdefault(u, len(numbers)) for u in uids], np.int32, len(uids))


def _components(spans: Sequence[RowSpan], rows: Sequence[int]) -> dict[str, NDArray[np.float32]]:
    """Name to float32 [n] of the reward components that a row has; NaN where a row has none."""
    tables: dict[int, NDArray[np.float32]] = {}
    found: dict[str, NDArray[np.float32]] = {}
    at = 0
    for (columns, start, stop), count in zip(spans, rows, strict=True):
        if (components := columns.rewards) is not None:
            table = tables.get(id(columns))
            if table is None:
                table = tables[id(columns)] = np.full(
                    (len(components.names), columns.rows), np.nan, np.float32
                )
                each = np.repeat(np.arange(columns.rows), np.diff(components.offsets))
                table[components.indexes, each] = components.values
            for name, values in zip(components.names, table, strict=True):
                if name not in found:
                    found[name] = np.full(sum(rows), np.nan, np.float32)
                found[name][at : at + count] = values[start:stop]
        at += count
    return {name: found[name] for name in sorted(found) if not np.isnan(found[name]).all()}


def _metadata(spans: Sequence[RowSpan]) -> list[str]:
    return [
        text for columns, start, stop in spans for text in columns.scalars["metadata"][start:stop]
    ]


def _taken(arrays: dict[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    """Takes the arrays whose names begin so out of ``arrays``; without the prefix."""
    names = [name for name in arrays if name.startswith(prefix)]
    return {name.removeprefix(prefix): arrays.pop(name) for name in names}
