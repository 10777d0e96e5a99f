"""What samplers decided about groups: by their decision logs, or by the files under ``batches/``
where there are no logs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import orjson

from rollstream.runtime.deadline import Deadline
from rollstream.sampler.errors import UnknownSampler
from rollstream.sampler.history.batch_files import groups_in, reading_batch, standing_files
from rollstream.sampler.history.decisions import no_batch, read_decisions
from rollstream.sampler.history.replay import newest_epoch
from rollstream.sampler.history.uses import IN_BATCH, Drop, Use, UseHistory
from rollstream.store.blobs import Blobs
from rollstream.store.errors import BlobMissing
from rollstream.store.layout import batch_in, batch_path, batches_prefix
from rollstream.streams.broker import Broker
from rollstream.streams.folds.refs import GroupRef
from rollstream.streams.topics.layout import Layout

_NO_OFFSET = -1  # A file does not say where its decision stands in the log.


class Recorded(Protocol):
    """A record of decisions.

    Attributes:
        whole: whether it has all of them, so that a group that it does not name waits.
    """

    whole: bool

    def of_step(self, name: str, step: int, trainer_epoch: int | None) -> list[Use]:
        """The groups of the newest batch of a step, of that trainer epoch, and those that gave way
        to others in it, in the order of decisions.

        Raises:
            UnknownSampler, UnknownStep: there is no such sampler, or batch. BlobMissing: its file
                is not there. BrokerUnavailable: not read in time.
        """

    def of_groups(
        self, name: str, groups: Mapping[GroupRef, str]
    ) -> tuple[list[Use], Mapping[GroupRef, Drop]]:
        """The batches that had any of these groups, by whose refs their ids are, and why they will
        never be served.

        Raises:
            UnknownSampler: there is no such sampler. BrokerUnavailable: not read in time.
        """


Decided = Mapping[str, tuple[Sequence[Use], Mapping[GroupRef, Drop]]]
"""By sampler, the batches that had some groups, and which of these are never served."""


def decided_about(
    groups: Mapping[GroupRef, str],
    recorded: Recorded,
    sampler: str | None,
    configured: Iterable[str],
) -> Decided:
    """What this sampler did with the groups; None: what each of those configured did, of which one
    may never have decided.

    Raises:
        UnknownSampler: the sampler is not there. BrokerUnavailable: not read in time.
    """
    if sampler is not None:
        return {sampler: recorded.of_groups(sampler, groups)}
    decided = {}
    for name in sorted(configured):
        with suppress(UnknownSampler):
            decided[name] = recorded.of_groups(name, groups)
    return decided


class RecordedInLogs:
    """By the decision logs, each read whole."""

    whole = True

    def __init__(self, broker: Broker, layout: Layout, deadline: Deadline) -> None:
        self._broker, self._layout, self._deadline = broker, layout, deadline

    def of_step(self, name: str, step: int, trainer_epoch: int | None) -> list[Use]:
        fold = self._folded(name, UseHistory(lambda _, used_in: used_in == step))
        of_epoch = (u.decided_at for u in fold.uses if trainer_epoch in (None, u.trainer_epoch))
        newest = max(of_epoch, default=_NO_OFFSET)
        uses = [use for use in fold.uses if use.decided_at == newest]
        if not uses:
            raise no_batch(name, step, trainer_epoch)
        return uses

    def of_groups(
        self, name: str, groups: Mapping[GroupRef, str]
    ) -> tuple[list[Use], Mapping[GroupRef, Drop]]:
        fold = self._folded(name, UseHistory(lambda ref, _: ref in groups))
        return fold.uses, fold.drops

    def _folded(self, name: str, fold: UseHistory) -> UseHistory:
        for decision in read_decisions(self._broker, self._layout, name, self._deadline):
            fold.apply(decision.offset, decision.event)
        return fold


class RecordedInFiles:
    """By the batches that were written as files: those of the newest choice of each step. Drops,
    acks and checkpoints stand in none.

    Args:
        steps: that ``of_groups`` looks at, where it is known which had them; None: all.
    """

    whole = False

    def __init__(self, store: Blobs, steps: Collection[int] | None = None) -> None:
        self._store, self._steps = store, steps

    def of_step(self, name: str, step: int, trainer_epoch: int | None) -> list[Use]:
        epoch = newest_epoch(self._store, name, step) if trainer_epoch is None else trainer_epoch
        path = batch_path(name, epoch, step)
        return list(_uses_in(path, self._store.read(path)))

    def of_groups(
        self, name: str, groups: Mapping[GroupRef, str]
    ) -> tuple[list[Use], Mapping[GroupRef, Drop]]:
        if self._steps is not None and not self._steps:
            return [], {}
        listed = [blob.path for blob in self._store.list(batches_prefix(name))]
        found = [one for path in listed if (one := batch_in(path)) is not None]
        if not found:
            raise UnknownSampler(f"there is no batch of a sampler {name!r} among the files")
        ids = [group_id.encode() for group_id in groups.values()]
        uses: list[Use] = []
        for step, epoch in sorted(standing_files(found).items()):
            if self._steps is not None and step not in self._steps:
                continue
            path = batch_path(name, epoch, step)
            try:
                data = self._store.read(path)
            except BlobMissing:
                continue  # It was deleted since it was listed.
            if any(one in data for one in ids):
                uses += (use for use in _uses_in(path, data) if use.group in groups)
        return uses, {}


def _uses_in(path: str, data: bytes) -> Iterator[Use]:
    """The groups of a batch, by its file."""
    with reading_batch(path):
        content: dict[str, Any] = orjson.loads(data)
        for slot, (ref, rows, carried) in enumerate(groups_in(content)):
            yield Use(
                group=ref,
                decided_at=_NO_OFFSET,
                trainer_epoch=content["trainer_epoch"],
                step=content["step"],
                slot=slot,
                batch_id=content["batch_id"],
                state=IN_BATCH,
                row_mask=None if rows is None else tuple(rows),
                carried=carried,
            )
