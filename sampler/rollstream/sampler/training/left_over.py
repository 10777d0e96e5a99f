"""What the step before left over, as it was decided; or nothing, with a warning."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from rollstream.folds.batches.served import SHAPING
from rollstream.runtime.deadline import Deadline
from rollstream.sampler.api.api import SamplerApi
from rollstream.sampler.batch.batch import Batch
from rollstream.sampler.batch.carried import CarriedGroup
from rollstream.sampler.decide.queries.looks import (
    AskBatch,
    AskRecorded,
    AskWithoutFiles,
    BatchSummary,
)
from rollstream.sampler.errors import GroupsUnreadable, UnknownStep

T = TypeVar("T")
_log = logging.getLogger("rollstream.sampler")


class Carry(NamedTuple, Generic[T]):
    """What a step is to carry.

    Attributes:
        left: what the step before left over; None: nothing, or it is not known.
        groups: those of it whose files are there.
        lost: its others by id, each with why.
    """

    left: T | None = None
    groups: tuple[CarriedGroup, ...] = ()
    lost: Mapping[str, str] = MappingProxyType({})


class _Known(NamedTuple, Generic[T]):
    """Of a step that was made, or looked for: its batch as it was then, what the next one carries,
    and what is to be warned of once that is decided."""

    step: int
    batch_id: str | None
    carry: Carry[T]
    warning: str = ""


class LeftOver(Generic[T]):
    """What each step leaves over for the next one: from memory, where its batch is still the same
    one, else from the record.

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
        no_part: whole names of settings by which nothing of that is told: whatever the record has
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
        self._settings: Mapping[str, Any] = json.loads(settings)
        self._left_by = left_by
        self._groups_of = groups_of
        self._known: _Known[T] | None = None

    def remember(self, batch: Batch, left: T) -> None:
        """What the step of this batch left over."""
        self._known = _Known(batch.step, batch.batch_id, self._carry_of(left))

    def forget(self) -> None:
        """What is left over is known from the record alone."""
        self._known = None

    def deadline(self, timeout_s: float | None) -> Deadline:
        """Of all that is asked for one step."""
        return Deadline(self._sampler._wait_s(timeout_s), self._sampler._clock)

    def summary(self, step: int, deadline: Deadline) -> BatchSummary | None:
        """As ``SamplerApi.batch_summary``; a broker that is away is waited for until the step's own
        deadline."""
        return self._sampler._ask(AskBatch(step=step), deadline.left_s())

    def before(self, step: int, deadline: Deadline) -> Carry[T]:
        """What ``step``, which was not served, is to carry. It waits for a broker as ``summary``.

        Raises:
            GroupsUnreadable: files of the step before are gone, and it is not final.
            StoreAway: the store is.
            SamplerError: whatever ``recorded_batch`` raises.
        """
        if step <= 0:
            return Carry()
        summary = self.summary(step - 1, deadline)
        batch_id = None if summary is None else summary.batch_id
        known = self._known
        if known is None or (known.step, known.batch_id) != (step - 1, batch_id):
            known = _Known(step - 1, batch_id, *self._recorded(step - 1, summary, deadline))
            self._known = known
        return known.carry

    def decided(self, step: int) -> None:
        """``step`` is decided: a warning tells what it lacks of what was left over."""
        known = self._known
        if known is not None and known.step == step - 1 and known.warning:
            self._known = known._replace(warning="")
            _log.warning("step %d %s", step, known.warning)

    def as_recorded(self, request: Mapping[str, Any]) -> str | None:
        """The settings in the request of a recorded step, where they differ from these in what has
        no part alone; None: they do in more, or there are none."""
        recorded = request.get(SHAPING)
        if recorded is None or self._differing(recorded):
            return None
        return json.dumps(recorded, sort_keys=True)

    def lose(self, why: object) -> None:
        """The step that was looked up last is to carry nothing, whatever was left over."""
        if self._known is not None:
            self._known = self._known._replace(carry=Carry(), warning=_nothing(why))

    def _recorded(
        self, step: int, summary: BatchSummary | None, deadline: Deadline
    ) -> tuple[Carry[T], str]:
        """What the next step carries, and what is to be warned of."""
        why: object = self._not_ours(step, summary)
        try:
            if why is None and (batch := self._ask(AskRecorded(step=step), deadline)) is not None:
                return self._carry_of(self._left_by(batch)), ""
        except UnknownStep as unknown:
            why = unknown
        except GroupsUnreadable as gone:
            if summary is None or not summary.final:
                raise
            found = gone.finding
            asked = AskWithoutFiles(step=step, lost=tuple(sorted(gone.groups)))
            if (batch := self._ask(asked, deadline)) is not None:
                carry = self._carry_of(self._left_by(batch), _reasons(gone))
                told = f"does not carry groups that are lost: {found}" if carry.lost else ""
                return carry, told
            why = (
                f"{found}; which policy sampled which rollout of a group that several did stands "
                f"in its file alone, so it is not known what step {step} left over"
            )
        return Carry(), _nothing(why or f"step {step} was not served")

    def _ask(self, command: AskRecorded, deadline: Deadline) -> Batch | None:
        return self._sampler._ask_if_recorded(command, deadline.left_s())

    def _carry_of(self, left: T, lost: Mapping[str, str] = MappingProxyType({})) -> Carry[T]:
        groups = self._groups_of(left)
        there = tuple(one for one in groups if one.group_id not in lost)
        ids = [one.group_id for one in groups]
        return Carry(left, there, {one: lost[one] for one in ids if one in lost})

    def _not_ours(self, step: int, summary: BatchSummary | None) -> str | None:
        """Why what the step left over is not known here; None: it is."""
        if summary is None:
            return f"no batch of step {step} is held"
        recorded: Mapping[str, Any] = json.loads(summary.request)
        if SHAPING not in recorded:
            return f"step {step} was served by next_batch, which keeps nothing for it"
        if differing := self._differing(recorded[SHAPING]):
            return f"step {step} was shaped with other settings: {'; '.join(differing)}"
        return None

    def _differing(self, recorded: Mapping[str, Any]) -> list[str]:
        """What tells the settings of a recorded step from these."""
        was, now = dict(flat(recorded)), dict(flat(self._settings))
        return [
            f"{name} was {was.get(name, 'not given')} and is now {now.get(name, 'not given')}"
            for name in sorted({*was, *now}.difference(self._no_part))
            if was.get(name) != now.get(name)
        ]


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


def flat(settings: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, str]]:
    """Each setting by its whole name, as JSON."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{under}{name}.")
        else:
            yield f"{under}{name}", json.dumps(value, sort_keys=True)
