"""Batches: the next one, and other groups in the slots of one that was served. Pure."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, Self, get_args

import numpy as np

from rollstream.folds.batches.served import ServedBatch, batch_digest
from rollstream.folds.group.eligible import Accept
from rollstream.folds.group.known import KnownGroup
from rollstream.folds.state import SamplerState
from rollstream.sampler.batch.assembled import AssembledBatch
from rollstream.sampler.batch.share import Share
from rollstream.sampler.decide.batches.held_batches import (
    batch_of,
    check_unchanged,
    groups_of,
    is_recorded,
)
from rollstream.sampler.decide.batches.new_batch import (
    batch_served,
    check_new_step,
    chosen_group,
    shortage_of_new,
)
from rollstream.sampler.decide.choosing.choose import (
    ALGORITHM,
    Asked,
    Chosen,
    Grouping,
    sample_groups,
)
from rollstream.sampler.decide.choosing.dropping import (
    Drops,
    drop_events,
    refs_of,
    unfit_groups,
    useless_groups,
)
from rollstream.sampler.decide.choosing.requests import (
    check_accept,
    check_chosen_by,
    choose,
    was_on_policy,
)
from rollstream.sampler.decide.command import FromStore, Now
from rollstream.sampler.decide.ratio import held_back
from rollstream.sampler.decide.shortages import Shortage
from rollstream.sampler.errors import InvalidRequest, RequestDiffers
from rollstream.schemas.choosing import Choosing
from rollstream.schemas.events import Replaced, SamplerEvent
from rollstream.streams.folds.refs import ref_of

_LATER: Mapping[str, Any] = MappingProxyType(
    {"grouping": "mixed", "policy_version": None, "seed": None, "start_offset": 0}
)
PayloadsBy = Literal["sampler", "rank"]
"""Who reads the rows of a share: the process that decides, or the rank's own."""


def check_payloads(payloads: str) -> None:
    """Raises ``InvalidRequest`` where it is no ``PayloadsBy``."""
    if payloads not in get_args(PayloadsBy):
        raise InvalidRequest(f"payloads {payloads!r} is unknown; use 'sampler' or 'rank'")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCommand(FromStore[AssembledBatch | Share]):
    """A command whose result is the batch of a step.

    Attributes:
        dp_rank, dp_size: which share of the recorded batch is read; no part of the request.
        columns: what is read of it besides; no part of the request.
        payloads: who reads it; no part of the request. ``rank``: the result names files, rows and
            digests, and making it costs the same however many tokens they have.
    """

    step: int
    dp_rank: int = 0
    dp_size: int = 1
    columns: tuple[str, ...] = ()
    payloads: PayloadsBy = "sampler"

    def check_same_request(
        self, served: ServedBatch, groups: Callable[[], Sequence[KnownGroup]]
    ) -> None:
        """``RequestDiffers`` where the batch, which has these groups, was served for another
        request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep(BatchCommand):
    """The batch that turns weights ``step`` into weights ``step + 1``: as it was decided, or
    decided now."""

    num_groups: int
    accept: Accept | None = None
    mix: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if self.step < 0:
            raise InvalidRequest(f"step {self.step} is negative; the first step is 0")
        check_accept(self.accept)
        check_payloads(self.payloads)
        self._check()

    def _check(self) -> None:
        """Raises ``InvalidRequest`` for what no step can be asked for."""

    @abstractmethod
    def asked(self) -> Asked:
        """What is asked for at least, for the choice."""

    @abstractmethod
    def following(self) -> Self:
        """The same for the next step, as far as it can be known by now."""

    @abstractmethod
    def _decide_anew(self, state: SamplerState, now: Now) -> list[SamplerEvent]:
        """The events that decide the step, which was not served."""

    def _decide(self, state: SamplerState, now: Now) -> list[SamplerEvent]:
        self.check_own(state)
        served = state.batches.get(self.step)
        if served is not None:
            self.check_same_request(served, partial(groups_of, served, state))
        elif not is_recorded(self.step, state):
            return self._decide_anew(state, now)
        return []

    def shortage(self, state: SamplerState) -> Shortage | None:
        if self.step in state.batches or is_recorded(self.step, state):
            return None
        return shortage_of_new(state, self.asked())


@dataclass(frozen=True, slots=True, kw_only=True)
class NextBatch(NextStep):
    """A step for which so many groups are chosen."""

    grouping: Grouping = "mixed"
    seed: int | None = None
    start_offset: int = 0
    policy_version: str | None = None

    def _check(self) -> None:
        check_chosen_by(self.asked())
        if not 0 <= self.dp_rank < self.dp_size:
            raise InvalidRequest(
                f"dp_rank {self.dp_rank} is not below dp_size {self.dp_size}; ranks begin at 0"
            )
        if self.dp_size > self.num_groups:
            raise InvalidRequest(
                f"dp_size {self.dp_size} is above num_groups {self.num_groups}, so that some ranks "
                "would have no rows; ask for a group a rank or more"
            )

    def decision_key(self) -> Hashable:
        return type(self), self.trainer_epoch, self.step, self.request()

    def request(self) -> str:
        """What was asked, as canonical JSON: equal requests are equal texts."""
        asked = {"accept": self.accept, "mix": self.mix, "num_groups": self.num_groups}
        for name, default in _LATER.items():  # So that requests of before are equal to these.
            if getattr(self, name) != default:
                asked[name] = getattr(self, name)
        return json.dumps(asked, sort_keys=True, separators=(",", ":"))

    def asked(self) -> Asked:
        return Asked(
            num_groups=self.num_groups,
            step=self.step,
            mix=self.mix,
            accept=self.accept,
            grouping=self.grouping,
            start_offset=self.start_offset,
            seed=self.seed,
            policy_version=self.policy_version,
        )

    def _decide_anew(self, state: SamplerState, now: Now) -> list[SamplerEvent]:
        check_new_step(state, self.asked())
        choice, drops = choose(state, self._choosing(state), self.asked(), now["now_ts"])
        events = drop_events(state, drops, now)
        if choice is None or held_back(state, self.num_groups, unfit_groups(drops)):
            return events
        decided = batch_served(state, now, self.asked(), self.request(), choice)
        return [*events, decided]

    def _choosing(self, state: SamplerState) -> Choosing:
        """The settings to choose by."""
        return state.choosing

    def following(self) -> Self:
        return replace(self, step=self.step + 1)

    def check_same_request(
        self, served: ServedBatch, groups: Callable[[], Sequence[KnownGroup]]
    ) -> None:
        if self.request() != served.event.request:
            raise RequestDiffers(
                f"step {self.step} was served for {served.event.request} and is now asked for "
                f"with {self.request()}; ask with the same arguments, or "
                "resume(…, later='release')"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace(BatchCommand):
    """Other groups in these slots of a served batch.

    Attributes:
        digest: of the batch as the caller has it: it sets a repetition apart from a new request.
            None: the batch as it is; the newest replacement is then repeated where slots and reason
            are the same.
        outcome: what the groups that give way count as; where they are ``unreadable`` and the batch
            has changed since, there is nothing to do.
        replaced_before: unreadable groups that the same call replaced; no part of the decision.
    """

    digest: bytes | None
    slots: tuple[int, ...]
    reason: str
    outcome: Literal["filtered", "unreadable"] = "filtered"
    replaced_before: int = 0

    def decision_key(self) -> Hashable:
        replaced = self.slots, self.reason, self.outcome
        return type(self), self.trainer_epoch, self.step, self.digest, replaced

    def _decide(self, state: SamplerState, now: Now) -> list[SamplerEvent]:
        if is_recorded(self.step, state):
            raise self._is_final()
        batch = batch_of(self.step, state)
        if self.digest is None and batch.final:
            raise self._is_final()  # Without the batch in hand nobody can tell a repeated call.
        if self._is_done(batch):
            return []
        if self.digest is not None:
            check_unchanged(batch, self.digest)
        self._check(batch, state)
        chosen, drops = self._choose(state, batch, now["now_ts"])
        events = drop_events(state, drops, now)
        if chosen is None:
            return events
        others = tuple(chosen_group(one, state.choosing) for one in chosen)
        groups = list(batch.groups)
        for slot, group in zip(self.slots, others, strict=True):
            groups[slot] = group
        replaced = Replaced(
            **now,
            trainer_epoch=state.trainer_epoch,
            step=self.step,
            batch_id=f"{batch.event.batch_id}-r{batch.replacements + 1}",
            reason=self.reason,
            slots=np.array(self.slots, np.int32),
            groups=others,
            cursor=state.cursor(),
            digest=batch_digest(groups, batch.carried),
            outcome=self.outcome,
            choosing=state.choosing.recorded(),
            algorithm=ALGORITHM,
            policy_epoch=state.policy_epoch,
        )
        return [*events, replaced]

    def shortage(self, state: SamplerState) -> Shortage | None:
        batch = state.batches[self.step]
        if self._is_done(batch):
            return None
        why = "cannot be read" if self.outcome == "unreadable" else "are to be replaced"
        sources = f"others, in the places {list(self.slots)} of its batch, whose groups {why}"
        of = Counter(batch.groups[slot].environment for slot in self.slots)
        quotas = [([name], count) for name, count in of.items()]
        return Shortage(self.step, len(self.slots), sources, quotas)

    def _choose(
        self, state: SamplerState, batch: ServedBatch, now_us: int
    ) -> tuple[list[Chosen] | None, Drops]:
        """A group for each slot, of the same environment, and of the newest policy where the one
        before was: shares of the batch stay what they were."""
        asked: dict[str, Any] = json.loads(batch.event.request)
        clock, all_equal = state.clock(self.step), asked["accept"] == "nonzero_std"
        drops = useless_groups(state, state.choosing, clock, now_us, all_equal=all_equal)
        while True:
            before = len(refs_of(drops))
            chosen = self._for_each_slot(state, batch, now_us, asked, drops)
            if len(refs_of(drops)) == before:
                return chosen, drops
            # What one slot dropped may have made another policy the newest for those before it.

    def _for_each_slot(
        self,
        state: SamplerState,
        batch: ServedBatch,
        now_us: int,
        request: Mapping[str, Any],
        drops: Drops,
    ) -> list[Chosen] | None:
        """The groups; those that are found to be too old are added to ``drops``."""
        chosen: list[Chosen] = []
        for slot in self.slots:
            asked = Asked(
                num_groups=1,
                step=self.step,
                mix={batch.groups[slot].environment: 1.0},
                accept=request["accept"],
                grouping=request.get("grouping", "mixed"),
                seed=request.get("seed"),
                policy_version=request.get("policy_version"),
                attempt=1 + batch.replacements * len(batch.groups) + slot,
            )
            choosing = state.choosing
            if choosing.on_policy_fraction:
                on_policy = 1.0 if was_on_policy(state, batch, slot) else 0.0
                choosing = replace(choosing, on_policy_fraction=on_policy)
            others = {state.ready.packed.pack(one.group.ref) for one in chosen}
            found = sample_groups(state, choosing, asked, drops, now_us=now_us, without=others)
            if found is None:
                return None
            chosen.extend(found)
        return chosen

    def _is_done(self, batch: ServedBatch) -> bool:
        """Whether this very replacement was the batch's last."""
        if self.outcome == "unreadable" and batch.digest != self.digest:
            return True
        last = batch.replaced
        if last is None or (last.slots, last.reason) != (self.slots, self.reason):
            return False
        return self.digest in (None, last.before)

    def _is_final(self) -> RequestDiffers:
        return RequestDiffers(
            f"the batch of step {self.step} is final: a checkpoint or a resume covers it, so its "
            "groups stay as they are; replace groups before checkpointed(step)"
        )

    def _check(self, batch: ServedBatch, state: SamplerState) -> None:
        if batch.final:
            raise self._is_final()
        if batch.status is not None:
            raise RequestDiffers(
                f"batch {batch.batch_id!r} was acked as {batch.status!r}, so its groups stay as "
                "they are; replace groups before ack(batch)"
            )
        slots = set(self.slots)
        within = range(len(batch.groups))
        later = state.batches.get(self.step + 1)
        carried = set() if later is None else {ref_of(one.group) for one in later.carried}
        if not carried.isdisjoint(batch.refs[slot] for slot in slots.intersection(within)):
            raise RequestDiffers(
                f"groups {self.slots} of the batch of step {self.step}: the batch of step "
                f"{self.step + 1} carries some of them, so they stay as they are"
            )
        if not slots or len(slots) != len(self.slots) or not slots.issubset(within):
            raise InvalidRequest(
                f"groups {self.slots} are not distinct slots of a batch of {len(batch.groups)}"
                + (", after which come those that it carries" if batch.carried else "")
            )
