"""What the files under ``batches/`` say: of steps by their names, and which groups a batch has.
Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import index, itemgetter
from typing import Any, Literal, NamedTuple

from rollstream.store.errors import CorruptFile
from rollstream.streams.folds.refs import GroupRef

DAMAGED = (ValueError, LookupError, TypeError, AttributeError, OverflowError)
"""What a file that is no JSON, or not what it should be, raises while it is read."""
Known = Literal["final", "trained", "failed", "served", "in_file", "in_no_file"]


class Steps(NamedTuple):
    """Steps that follow one another, ``last`` among them, of which the same is known.

    Attributes:
        known: by a snapshot ``final``, acked as ``trained`` or ``failed``, or ``served`` and not
            acked then; ``in_file``: decided later, and whether it was acked is not known;
            ``in_no_file``: a later step is known, and of this one nothing is.
        trainer_epoch: in which the batch was decided; None: not known.
    """

    first: int
    last: int
    known: Known
    trainer_epoch: int | None


class BatchGroup(NamedTuple):
    """A group of a batch.

    Attributes:
        rows: which of its rows the batch has; of a carried one, those yet to be trained on. None:
            all.
        carried: whether the step before had it.
    """

    ref: GroupRef
    rows: Sequence[bool] | None
    carried: bool


@contextmanager
def reading_batch(path: str) -> Iterator[None]:
    """Raises ``CorruptFile`` where what is read of a batch's file is damaged."""
    try:
        yield
    except DAMAGED as error:
        raise CorruptFile(f"{path} is no batch's file, or a damaged one: {error!r}") from error


def groups_in(content: Mapping[str, Any]) -> Iterator[BatchGroup]:
    """The groups that a batch's file names, those that were carried last.

    Raises:
        DAMAGED: it is damaged.
    """
    for group in [*content["groups"], *content.get("carried", ())]:
        place = (index(group[name]) for name in ("generation", "partition", "offset", "index"))
        ref = GroupRef(group["environment"], *place)
        yield BatchGroup(ref, group.get("wanted", group.get("row_mask")), "wanted" in group)


def standing_files(files: Iterable[tuple[int, int]]) -> dict[int, int]:
    """By step, the trainer epoch of the newest file that no rewind has undone: where an epoch
    begins with a step that an older one had decided, that one's batches from there on were
    released.

    Args:
        files: trainer epoch and step of each.
    """
    standing: dict[int, int] = {}
    rewound_to: int | None = None
    for epoch, of_epoch in groupby(sorted(files, reverse=True), key=itemgetter(0)):
        steps = [step for _, step in of_epoch]
        standing |= {step: epoch for step in steps if rewound_to is None or step < rewound_to}
        rewound_to = steps[-1] if rewound_to is None else min(rewound_to, steps[-1])
    return standing


def in_runs(steps: Iterable[Steps]) -> list[Steps]:
    """The same, by rising step, with neighbours of which the same is known as one."""
    runs: list[Steps] = []
    for one in steps:
        if runs and runs[-1][2:] == one[2:] and runs[-1].last + 1 == one.first:
            runs[-1] = runs[-1]._replace(last=one.last)
        else:
            runs.append(one)
    return runs
