"""The batch of a shaped step: new groups, and those that the step before left over. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np

from rollstream.folds.batches.served import LOST, SHAPING, ServedBatch
from rollstream.folds.group.known import KnownGroup
from rollstream.folds.state import SamplerState
from rollstream.sampler.arguments import group_ids, marks, text
from rollstream.sampler.batch.carried import CarriedGroup
from rollstream.sampler.decide.batches.acks import check_kept
from rollstream.sampler.decide.batches.held_batches import (
    by_row,
    served_rows,
    trajectories_of,
)
from rollstream.sampler.decide.batches.made import MadeOf
from rollstream.sampler.decide.batches.new_batch import (
    batch_served,
    check_new_step,
)
from rollstream.sampler.decide.batches.next_batch import NextStep
from rollstream.sampler.decide.choosing.choose import Asked, Chosen, counted
from rollstream.sampler.decide.choosing.dropping import Drops, drop_events, refs_of, unfit_groups
from rollstream.sampler.decide.choosing.requests import choose
from rollstream.sampler.decide.command import Now
from rollstream.sampler.decide.ratio import held_back
from rollstream.sampler.errors import CarryLost, CarryNeeded, InvalidRequest, RequestDiffers
from rollstream.schemas.events import CarriedRows, SamplerEvent
from rollstream.streams.folds.refs import ref_of

_SHOWN = 4  # Groups that a message names.
WHY_CHARS_MAX = 500  # Of why a group is lost.
Wanted = tuple[bool, ...]  # One a trajectory of a group, in the order of its rows.
Carry = tuple[tuple[str, Wanted], ...]  # By group id.


class Request(NamedTuple):
    """What was asked, but for what is carried.

    Attributes:
        text: canonical JSON: equal requests are equal texts.
        parsed: the same.
    """

    text: str
    parsed: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NextShapedBatch(NextStep):
    """A step for which as many groups are chosen as are ready, ``min_groups`` to ``num_groups``,
    and after them those that the step before left over.

    Attributes:
        settings: of what shapes, as JSON.
        carried: from the step before; None: as it was recorded.
        lost: groups of it that would be carried, and whose files are lost, each with why; recorded
            with the decision, and no part of what a repeated call has to be asked with.
        after: id of the batch of the step before that ``carried`` was made of; empty: none was
            held. A step that was served then carries what was recorded, whatever ``carried`` says.
            None: ``carried`` is of that batch, whichever it is, and a repeated call has the same.
        only_ask: dotted names in the request that say what a new step asks for alone: a step that
            was served may have others.
        made: what a batch maker made of an earlier step, as the caller knows it.
        request: of all up to ``mix``.
    """

    settings: str
    min_groups: int
    carried: Carry | None
    lost: tuple[tuple[str, str], ...] = ()
    after: str | None = None
    only_ask: tuple[str, ...] = ()
    made: MadeOf | None = None
    request: Request = field(init=False, repr=False)

    def _check(self) -> None:
        if not 0 <= self.min_groups <= self.num_groups:
            raise InvalidRequest(
                f"min_groups {self.min_groups} is not within 0 and num_groups {self.num_groups}"
            )
        ids = [group_id for group_id, _ in self.carried or ()]
        if len(set(ids)) != len(ids):
            twice = next(one for one in ids if ids.count(one) > 1)
            raise InvalidRequest(f"carried names group {twice} twice; name each once")
        object.__setattr__(self, "request", self._request())

    @classmethod
    def of_record(cls, served: ServedBatch, groups: Sequence[KnownGroup]) -> NextShapedBatch:
        """The command that called for a recorded decision, which carried these groups."""
        asked: dict[str, Any] = json.loads(served.event.request)
        return cls(
            step=served.event.step,
            settings=json.dumps(asked.pop(SHAPING)),
            carried=carry_of(served, groups),
            lost=tuple(asked.pop(LOST, {}).items()),
            **asked,
        )

    def decision_key(self) -> Hashable:
        carry = self.carried, self.after
        return type(self), self.trainer_epoch, self.step, self.request.text, carry

    def _request(self) -> Request:
        try:
            settings = json.loads(self.settings)
        except ValueError as error:
            raise InvalidRequest(f"settings {self.settings!r:.200} are no JSON: {error}") from None
        asked = {
            "accept": self.accept,
            "min_groups": self.min_groups,
            "mix": self.mix,
            "num_groups": self.num_groups,
            SHAPING: settings,
        }
        if self.lost:
            asked[LOST] = dict(self.lost)
        return Request(json.dumps(asked, sort_keys=True, separators=(",", ":")), asked)

    def check_own(self, state: SamplerState) -> None:
        if self.made is not None:
            self.made.check_recorded(state)

    def afterwards(self, state: SamplerState, now: Now) -> list[SamplerEvent]:
        """What was made of the earlier step."""
        return [] if self.made is None else self.made.events(state, now)

    def _decide_anew(self, state: SamplerState, now: Now) -> list[SamplerEvent]:
        before = state.batches.get(self.step - 1)
        batch_id = "" if before is None else before.batch_id
        if self.carried is None or self.after not in (None, batch_id):
            raise CarryNeeded(
                f"step {self.step} was not served, so nothing is recorded of what it carries; the "
                f"next one is {state.next_step}. Shape recorded_batch({self.step - 1}), or give "
                "carried=() where there is no step before",
                batch_id=batch_id,
                request="{}" if before is None else before.event.request,
                final=before is not None and before.final,
            )
        check_new_step(state, self._asked(self.num_groups))
        carried = tuple(self._carried_rows(state, *one) for one in self.carried)
        if carried:
            rows = {ref_of(one.group): one.wanted for one in carried}
            check_kept(state.batches[self.step - 1], self.step, rows)
        choice, drops = self._most(state, now["now_ts"])
        events = drop_events(state, drops, now)
        if choice is None:
            return events
        asked = self._asked(self.num_groups)
        return [*events, batch_served(state, now, asked, self.request.text, choice, carried)]

    def following(self) -> Self:
        """What it will carry, only who shapes knows."""
        return replace(self, step=self.step + 1, carried=(), after=None, made=None)

    def asked(self) -> Asked:
        return self._asked(self.min_groups)

    def _asked(self, num_groups: int) -> Asked:
        return Asked(
            num_groups=num_groups,
            step=self.step,
            mix=self.mix,
            accept=self.accept,
        )

    def _most(self, state: SamplerState, now_us: int) -> tuple[list[Chosen] | None, Drops]:
        """As many groups as can be served, up to ``num_groups``; None: fewer than ``min_groups``
        can."""
        found, drops = self._choose(state, self.num_groups, now_us)
        if found is not None or self.min_groups == self.num_groups:
            return found, drops
        enough = self._enough(state, now_us, drops)
        can, cannot = self.min_groups, min(self.num_groups, len(state.ready) + 1)
        if not enough(can):
            cannot = can
        while cannot - can > 1:
            tried = (can + cannot) // 2
            if enough(tried):
                can = tried
            else:
                cannot = tried
        return self._choose(state, can, now_us)

    def _enough(self, state: SamplerState, now_us: int, drops: Drops) -> Callable[[int], bool]:
        """Whether so many groups can be served.

        Args:
            drops: what a choice of any number drops, where it drops nothing that it looks at.
        """
        asked, without = self._asked(self.num_groups), refs_of(drops)
        are_there = counted(state, state.choosing, asked, without)
        if are_there is None:
            return lambda tried: self._choose(state, tried, now_us)[0] is not None
        unfit = unfit_groups(drops)
        return lambda tried: are_there(tried) and not (tried and held_back(state, tried, unfit))

    def _choose(
        self, state: SamplerState, num_groups: int, now_us: int
    ) -> tuple[list[Chosen] | None, Drops]:
        choice, drops = choose(state, state.choosing, self._asked(num_groups), now_us)
        if num_groups and held_back(state, num_groups, unfit_groups(drops)):
            return None, drops
        return choice, drops

    # What is carried.

    def _carried_rows(self, state: SamplerState, group_id: str, wanted: Wanted) -> CarriedRows:
        """The group as the step before had it."""
        before_it = self.step - 1
        cannot = f"step {self.step} cannot carry group {group_id}: "
        newer = "resume from a newer checkpoint, or give carried=()"
        before = state.batches.get(before_it)
        if before is None:
            raise CarryLost(f"{cannot}the batch of step {before_it} is not held any more; {newer}")
        if not before.is_shaped:
            raise InvalidRequest(
                f"{cannot}step {before_it} was served by next_batch; give carried=()"
            )
        had = next((one for one in before.all_groups if one.group_id == group_id), None)
        if had is None:
            raise InvalidRequest(
                f"{cannot}the batch of step {before_it} has it neither chosen nor carried; carry "
                f"what recorded_batch({before_it}) leaves over"
            )
        if state.is_retired(ref_of(had)):
            raise CarryLost(f"{cannot}its file was retired (`rollstream retain`); {newer}")
        known = state.group(had)
        assert known is not None, had
        return CarriedRows(had, by_row(had, known, np.array(wanted, np.bool_), "wanted"))

    # What was recorded.

    def check_same_request(
        self, served: ServedBatch, groups: Callable[[], Sequence[KnownGroup]]
    ) -> None:
        recorded = json.loads(served.event.request)
        was, now = _asked_by_name(recorded), _asked_by_name(self.request.parsed)
        found = differing(was, now, {LOST, *self.only_ask})
        if self.carried is not None and self.after is None:
            carried = carry_of(served, groups()[len(served.groups) :])
            others = differing(_carry_by_name(carried), _carry_by_name(self.carried), ())
            found += others[:_SHOWN]
            if len(others) > _SHOWN:
                found.append(f"{len(others) - _SHOWN} more carried groups differ")
            if not others and carried != self.carried:
                found.append("the same groups are carried in another order")
        if found:
            raise RequestDiffers(
                f"step {self.step} was served for another request: {'; '.join(found)}; ask with "
                "the same arguments, or resume(…, later='release')"
            )


def carry_asked(carried: Sequence[CarriedGroup] | None) -> Carry | None:
    """What a step is to carry, as a caller names it; ``InvalidRequest`` where it cannot be."""
    if carried is None:
        return None
    ids = group_ids("carried", [one.group_id for one in carried])
    wanted = [marks(f"wanted of group {one.group_id}", one.wanted) for one in carried]
    return tuple(zip(ids, wanted, strict=True))


def lost_asked(lost: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What is recorded as lost, as a caller names it; ``InvalidRequest`` where it cannot be."""
    group_ids("lost", [*lost])
    return tuple((group_id, text("lost", why)[:WHY_CHARS_MAX]) for group_id, why in lost.items())


def carry_of(served: ServedBatch, groups: Sequence[KnownGroup]) -> Carry:
    """What a batch carries: these groups."""
    found = []
    for carried, known in zip(served.carried, groups, strict=True):
        rows = served_rows(carried.group, known)
        _, first = np.unique(trajectories_of(known)[rows], return_index=True)
        found.append((carried.group.group_id, tuple(carried.wanted[rows][first].tolist())))
    return tuple(found)


Named = Mapping[tuple[str, ...], str]
"""Settings by their names, from the outermost one on, as JSON."""


def by_name(settings: Mapping[str, Any], under: tuple[str, ...] = ()) -> Named:
    """Each setting by its whole name."""
    found: dict[tuple[str, ...], str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            found |= by_name(value, (*under, name))
        else:
            found[*under, name] = json.dumps(value, sort_keys=True)
    return found


def differing(was: Named, now: Named, without: Collection[str]) -> list[str]:
    """What tells these settings apart, but for those whose dotted names are in ``without``."""
    return [
        f"{dotted} was {was.get(name, 'not given')} and is now {now.get(name, 'not given')}"
        for name in sorted({*was, *now})
        if was.get(name) != now.get(name) and (dotted := ".".join(name)) not in without
    ]


def _asked_by_name(request: Mapping[str, Any]) -> Named:
    """The request, each of the settings that shape it by its own name."""
    found: dict[tuple[str, ...], str] = {}
    for name, one in request.items():
        if name == SHAPING:
            found.update(by_name({name: one}))
        else:
            found[name,] = json.dumps(one, sort_keys=True)
    return found


def _carry_by_name(carry: Carry) -> Named:
    """Which trajectories of each group are wanted."""
    return {("wanted", group): "".join("01"[one] for one in wanted) for group, wanted in carry}
