"""The batch of each step, with what the step before left over; or nothing, with a warning."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from rollstream.folds.batches.served import SHAPING
from rollstream.runtime.deadline import Deadline
from rollstream.sampler.api.api import SamplerApi
from rollstream.sampler.batch.batch import Batch
from rollstream.sampler.batch.carried import CarriedGroup
from rollstream.sampler.decide.batches.shaped import (
    NextShapedBatch,
    by_name,
    carry_asked,
    differing,
    lost_asked,
)
from rollstream.sampler.decide.queries.looks import AskRecorded, AskWithoutFiles
from rollstream.sampler.errors import CarryLost, CarryNeeded, GroupsUnreadable, UnknownStep

T = TypeVar("T")
_NOTHING: Mapping[str, str] = MappingProxyType({})
_log = logging.getLogger("rollstream.sampler")


class _Known(NamedTuple, Generic[T]):
    """A step that was made, or looked for, and what the next one carries.

    Attributes:
        batch_id: of its batch as it was then; empty: none is held.
        left: what it left over; None: nothing, or it is not known.
        groups: those of it whose files are there.
        lost: its others by id, each with why.
        warning: what is to be warned of once the next step is decided.
    """

    step: int
    batch_id: str = ""
    left: T | None = None
    groups: tuple[CarriedGroup, ...] = ()
    lost: Mapping[str, str] = _NOTHING
    warning: str = ""


class LeftOver(Generic[T]):
    """The batch of each step, and what it leaves over for the next one: from memory, where it is
    still the same one, and else from the record.

    Only who has the settings that a step was shaped with knows what it trained on, and so what is
    left. After a step that was shaped with others, or not at all, or that is not held any more,
    nothing is left: what it may have kept is trained on by nobody, rather than something twice.
    Where files of a final step are lost, what it left is found by what the seal logs have of their
    groups, and these alone are lost; or all of it, where one of them was sampled by several
    policies, whose versions stand in the file alone. A warning says so.

    Args:
        sampler: that serves.
        settings: as ``Shaping`` has them.
        left_by: what the recorded batch of a step with these settings left over.
        no_part: dotted names of settings by which nothing of that is told: whatever the record has
            of them, it is the same.
    """

    def __init__(
        self,
        sampler: SamplerApi,
        settings: str,
        left_by: Callable[[Batch], T],
        groups_of: Callable[[T], Sequence[CarriedGroup]],
        *,
        no_part: Collection[str] = (),
    ) -> None:
        self._sampler = sampler
        self._no_part = no_part
        self._settings = by_name(json.loads(settings))
        self._left_by = left_by
        self._groups_of = groups_of
        self._known: _Known[T] | None = None

    def remember(self, batch: Batch, left: T) -> None:
        """What the step of this batch left over."""
        self._known = self._known_of(batch, left)

    async def batch_of(
        self, step: int, timeout_s: float | None, shaped: Callable[[T | None], NextShapedBatch]
    ) -> Batch:
        """The recorded batch of a step: of one that was served as it was, else with what the step
        before left over. One command, where that is known here.

        Args:
            shaped: the command, but for what it carries, by what the step before left over.

        Raises:
            CarryNeeded: the step before is replaced again and again.
            SamplerError: whatever ``next_shaped_batch`` and ``recorded_batch`` raise.
        """
        deadline = Deadline(self._sampler._wait_s(timeout_s), self._sampler._clock)
        known, looked = self._before(step), False
        while True:
            try:
                command = _carrying(shaped(None if known is None else known.left), known)
                batch = await self._sampler._asked_for_batch(command, deadline.left_s())
            except CarryNeeded as needed:
                if looked and deadline.passed():
                    raise
                known = self._known = await self._recorded(step - 1, needed, deadline)
                looked = True
            except CarryLost as why:
                if known is None or not known.groups:
                    raise
                known = self._known = _Known(known.step, known.batch_id, warning=_nothing(why))
            except GroupsUnreadable:
                self._known = None  # Files are lost that were there when the step before was made.
                raise
            else:
                break
        if known is not None and known.warning:
            self._known = known._replace(warning="")
            _log.warning("step %d %s", step, known.warning)
        return batch

    def _before(self, step: int) -> _Known[T] | None:
        """What is known of the step before."""
        if step <= 0:
            return _Known(step - 1)
        known = self._known
        return known if known is not None and known.step == step - 1 else None

    async def _recorded(self, step: int, needed: CarryNeeded, deadline: Deadline) -> _Known[T]:
        """What the record has of a step; waits for a broker that is away until the deadline.

        Raises:
            GroupsUnreadable: files of the step are gone, and it is not final.
            StoreAway: the store is.
            SamplerError: whatever ``recorded_batch`` raises.
        """
        why: object = self._not_ours(step, needed)
        told, lost = "", _NOTHING
        try:
            batch = None if why else await self._ask(AskRecorded(step=step), deadline)
        except UnknownStep as unknown:
            batch, why = None, unknown
        except GroupsUnreadable as gone:
            if not needed.final:
                raise
            batch = await self._ask(
                AskWithoutFiles(step=step, lost=tuple(sorted(gone.groups))), deadline
            )
            lost = _reasons(gone)
            told = f"does not carry groups that are lost: {gone.finding}"
            why = (
                f"{gone.finding}; which policy sampled which rollout of a group that several did "
                f"stands in its file alone, so it is not known what step {step} left over"
            )
        if batch is None:
            nothing = _nothing(why or f"step {step} was not served")
            return _Known(step, needed.batch_id, warning=nothing)
        left = await self._sampler._aside(self._left_by, batch)
        return self._known_of(batch, left, lost, told)

    async def _ask(self, command: AskRecorded, deadline: Deadline) -> Batch | None:
        return await self._sampler._asked_if_recorded(command, deadline.left_s())

    def _known_of(
        self, batch: Batch, left: T, lost: Mapping[str, str] = _NOTHING, told: str = ""
    ) -> _Known[T]:
        """``told``: what is to be warned of where some of it is lost."""
        groups = self._groups_of(left)
        there = tuple(one for one in groups if one.group_id not in lost)
        ids = [one.group_id for one in groups]
        gone = {one: lost[one] for one in ids if one in lost}
        return _Known(batch.step, batch.batch_id, left, there, gone, told if gone else "")

    def _not_ours(self, step: int, needed: CarryNeeded) -> str | None:
        """Why what the step left over is not known here; None: it is."""
        if not needed.batch_id:
            return f"no batch of step {step} is held"
        recorded: Mapping[str, Any] = json.loads(needed.request)
        if SHAPING not in recorded:
            return f"step {step} was served by next_batch, which keeps nothing for it"
        if found := differing(by_name(recorded[SHAPING]), self._settings, self._no_part):
            return f"step {step} was shaped with other settings: {'; '.join(found)}"
        return None


def _carrying(command: NextShapedBatch, known: _Known[Any] | None) -> NextShapedBatch:
    """The command with what is to be carried; it stays without where that is not known."""
    if known is None:
        return command
    return replace(
        command,
        carried=carry_asked(known.groups),
        lost=lost_asked(known.lost),
        after=known.batch_id,
    )


def _reasons(gone: GroupsUnreadable) -> dict[str, str]:
    """By group id, why its own file cannot be read; where that is not known, what is of all."""
    return {
        group_id: f"its file cannot be read: {gone.reasons[slot]}"
        if slot in gone.reasons
        else gone.finding
        for slot, group_id in gone.groups.items()
    }


def _nothing(why: object) -> str:
    return f"carries nothing from the one before: {why}"
