"""What a trainer reports: batches trained on, checkpoints, new beginnings, new weights. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

from rollstream.folds.batches.row_outcomes import pack_outcomes
from rollstream.folds.batches.served import ServedBatch
from rollstream.folds.published import Described
from rollstream.folds.state import SamplerState
from rollstream.sampler.decide.batches.acks import check_carried, kept_rows, outcomes_by_row
from rollstream.sampler.decide.batches.held_batches import batch_of, is_recorded
from rollstream.sampler.decide.batches.made import MadeOf
from rollstream.sampler.decide.choosing.dropping import drop_events, useless_groups
from rollstream.sampler.decide.command import Command, Now, ResultContext
from rollstream.sampler.errors import InvalidRequest, RequestDiffers, UnknownStep
from rollstream.schemas.events import (
    Acked,
    Checkpointed,
    CurrentStepSet,
    Finished,
    PolicyPublished,
    Resumed,
    SamplerEvent,
)
from rollstream.schemas.order import Policy
from rollstream.schemas.reasons import DropReason

AckStatus = Literal["trained", "failed"]
Later = Literal["replay", "release"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOnly(Command[None]):
    """A command whose caller learns no more than that it is recorded."""

    def result(self, state: SamplerState, context: ResultContext) -> None:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack(RecordedOnly):
    """The batch of ``step`` was delivered and trained on, but for the groups in the slots
    ``skipped``, or it failed.

    Attributes:
        outcomes: of a shaped batch, by slot a ``RowOutcome`` of each trajectory that the batch has;
            None: the ack does not say.
        made: what a batch maker made of it. Where that differs from what is recorded, the ack
            counts, and its caller is told.
    """

    step: int
    batch_id: str
    status: AckStatus = "trained"
    skipped: tuple[int, ...] = ()
    outcomes: tuple[bytes, ...] | None = None
    made: MadeOf | None = None

    def _decide(self, state: SamplerState, now: Now) -> list[SamplerEvent]:
        if is_recorded(self.step, state):
            return []  # As with every batch that is final.
        batch = batch_of(self.step, state)
        if self.status not in ("trained", "failed"):
            raise InvalidRequest(f"status {self.status!r} is unknown; use 'trained' or 'failed'")
        if self.batch_id != batch.batch_id:
            raise RequestDiffers(
                f"step {self.step} is batch {batch.batch_id!r}, not {self.batch_id!r}: that one "
                "was released by a resume, or groups of it were replaced; ask for the step again, "
                "and ack the batch that came back last"
            )
        self._check_skipped(len(batch.groups))
        by_row = None if self.outcomes is None else outcomes_by_row(batch, self.outcomes, state)
        acked = Acked(
            **now,
            trainer_epoch=state.trainer_epoch,
            step=self.step,
            batch_id=self.batch_id,
            status=self.status,
            skipped=tuple(sorted(self.skipped)),
            outcomes=None if by_row is None else pack_outcomes(by_row),
        )
        if batch.status is not None and _said(batch.acked_by(acked)) != _said(batch):
            raise RequestDiffers(
                f"batch {self.batch_id!r} was acked as {batch.status!r} without slots "
                f"{[*batch.untrained]} and is now acked as {self.status!r} without "
                f"{[*batch.acked_by(acked).untrained]}, or with other outcomes of trajectories; a "
                "batch is acked in one way"
            )
        if batch.status is not None or batch.final:
            return []
        after = state.batches.get(self.step + 1)
        if by_row is not None and after is not None:
            check_carried(batch, kept_rows(batch, by_row), after)
        return [acked]

    def _check_skipped(self, groups: int) -> None:
        """Something of what is skipped was trained on."""
        if self.outcomes is not None and self.skipped:
            raise InvalidRequest("outcomes tell of each trajectory: leave skipped out")
        if self.status == "failed" and (self.skipped or self.outcomes is not None):
            raise InvalidRequest(
                f"batch {self.batch_id!r} failed, so nothing of it was trained on: leave skipped "
                "and outcomes out"
            )
        named = set(self.skipped)
        if named and not (named < set(range(groups)) and len(named) == len(self.skipped)):
            raise InvalidRequest(
                f"skipped {[*self.skipped]} are not distinct slots of a batch of {groups}, some of "
                "which was trained on; where nothing was, ack(batch, status='failed')"
            )

    def afterwards(self, state: SamplerState, now: Now) -> list[SamplerEvent]:
        """What was made of the batch."""
        return [] if self.made is None else self.made.events(state, now)

    def check_own(self, state: SamplerState) -> None:
        if self.made is not None:
            self.made.check_recorded(state)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkCheckpointed(RecordedOnly):
    """Batches up to this step are final."""

    step: int

    def _decide(self, state: SamplerState, now: Now) -> list[SamplerEvent]:
        if self.step < 0:
            raise InvalidRequest(f"step {self.step} is negative; steps count from 0")
        held = any(at <= self.step and not batch.final for at, batch in state.batches.items())
        if not held and self.step <= state.final_step:
            return []
        batch_id = batch_of(self.step, state).batch_id
        if not held:
            return []
        epoch, step = state.trainer_epoch, self.step
        return [Checkpointed(**now, trainer_epoch=epoch, step=step, batch_id=batch_id)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(RecordedOnly):
    """The run is over; with ``if_final`` only where every served batch is final."""

    if_final: bool = False

    def _decide(self, state: SamplerState, now: Now) -> list[SamplerEvent]:
        if state.over or (self.if_final and state.open_batches()):
            return []
        return [Finished(**now, trainer_epoch=state.trainer_epoch)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(Command[int]):
    """A new trainer epoch begins after this checkpoint; None: from nothing."""

    checkpointed_step: int | None
    later: Later = "replay"

    def decide(self, state: SamplerState, now: Now) -> list[SamplerEvent]:
        """A resume is never fenced: it begins the epoch that fences all others."""
        self._check(state)
        # As long as nobody can have sampled with a policy of this epoch, there is no other branch.
        # A first resume from a checkpoint goes on with a run that this log does not know.
        unknown = state.trainer_epoch == 0 and self.checkpointed_step is not None
        policy_epoch = state.policy_epoch + (state.epoch_used or unknown)
        resumed = Resumed(
            **now,
            trainer_epoch=state.trainer_epoch + 1,
            checkpointed_step=self.checkpointed_step,
            later=self.later,
            first_step=self._first_step(),
            policy_epoch=policy_epoch,
        )
        return [resumed]

    def decision_key(self) -> Hashable:
        """No two begin one epoch."""
        return object()

    def result(self, state: SamplerState, context: ResultContext) -> int:
        """The step to do next."""
        return self._first_step()

    def _first_step(self) -> int:
        return 0 if self.checkpointed_step is None else self.checkpointed_step + 1

    def _check(self, state: SamplerState) -> None:
        """A checkpoint must lie within what was served."""
        if self.later not in ("replay", "release"):
            raise InvalidRequest(f"later {self.later!r} is unknown; use 'replay' or 'release'")
        saved = self.checkpointed_step
        if saved is not None and saved < 0:
            raise InvalidRequest(f"checkpointed_step {saved} is negative; None means a new run")
        if saved is not None and state.batches and saved >= state.next_step:
            raise UnknownStep(
                f"checkpoint {saved} cannot be: the newest step that sampler {state.name!r} "
                f"served is {state.next_step - 1}; does the checkpoint belong to another sampler?"
            )
        if self.later == "replay":
            self._check_readable(state)

    def _check_readable(self, state: SamplerState) -> None:
        """No batch that is held and replayed has groups of a retired file."""
        first = self._first_step()
        retired = [
            step
            for step, batch in sorted(state.batches.items())
            if step >= first and any(map(state.is_retired, batch.all_refs))
        ]
        if retired:
            raise UnknownStep(
                f"{len(retired):,} of the steps from {first} on cannot be replayed, the first is "
                f"{retired[0]}: files of their groups were retired (`rollstream retain`); resume "
                f"from checkpoint {retired[-1]} or a newer one, or with later='release', so that "
                "these steps get other groups"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishPolicy(Command[Policy]):
    """Weights ``step`` can be sampled with, under this version; ``metadata`` is JSON."""

    step: int
    policy_version: str
    weights: str = ""
    metadata: str = "{}"

    def _decide(self, state: SamplerState, now: Now) -> list[SamplerEvent]:
        if self.step < 0 or not self.policy_version:
            raise InvalidRequest(
                f"policy {self.policy_version!r} of step {self.step}: the version must not be "
                "empty and the step not negative"
            )
        _check_exists(state, self.step, "publish_policy")
        version = self._unused_version(state)
        published = state.published.versions.get((state.policy_epoch, self.step))
        if published is not None:
            if published not in (version, self.policy_version):
                raise RequestDiffers(
                    f"weights {self.step} were published as {published!r} and now as "
                    f"{self.policy_version!r}; a policy has one version"
                )
            self._check_described_alike(state)
            return []
        holder = state.published.policies.get(version)
        if holder is not None:
            raise RequestDiffers(
                f"version {version!r} already names weights {holder[1]} and is now given to "
                f"weights {self.step}; a version is never used again"
            )
        event = PolicyPublished(
            **now,
            trainer_epoch=state.trainer_epoch,
            step=self.step,
            policy_version=version,
            lineage=state.choosing.lineage,
            policy_epoch=state.policy_epoch,
            weights=self.weights,
            metadata=self.metadata,
        )
        return [event]

    def result(self, state: SamplerState, context: ResultContext) -> Policy:
        return state.published.policy(state.choosing.lineage, state.policy_epoch, self.step)

    def _check_described_alike(self, state: SamplerState) -> None:
        """Env workers may have read what was said first."""
        described = Described(self.weights, self.metadata)
        kept = state.published.kept.get((state.policy_epoch, self.step), described)
        for name, found, given in zip(kept._fields, kept, described, strict=True):
            if found != given:
                raise RequestDiffers(
                    f"weights {self.step} were published with {name} {found!r:.200} and now with "
                    f"{given!r:.200}; env workers may have read the first, so give the same"
                )

    def _unused_version(self, state: SamplerState) -> str:
        """A version that no older epoch used: a rewound trainer tends to count up to the same."""
        holder = state.published.policies.get(self.policy_version)
        if holder is None or holder[0] == state.policy_epoch:
            return self.policy_version
        return f"{self.policy_version}.e{state.policy_epoch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop(RecordedOnly):
    """Groups of these ids will never be served."""

    group_ids: tuple[str, ...]
    reason: str

    def _decide(self, state: SamplerState, now: Now) -> list[SamplerEvent]:
        wanted = set(self.group_ids)
        for batch in state.open_batches():
            for slot, chosen in enumerate(batch.groups):
                if chosen.group_id in wanted:
                    raise RequestDiffers(
                        f"group {chosen.group_id} is in the batch of step {batch.event.step}; put "
                        f"another into its place: replace({batch.event.step}, [{slot}], reason)"
                    )
        refs = [*map(state.ready.packed.pack, state.undecided(wanted))]
        return drop_events(state, {DropReason.BY_TRAINER: refs}, now, self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Purge(RecordedOnly):
    """The groups that are ready now will never be served."""

    def _decide(self, state: SamplerState, now: Now) -> list[SamplerEvent]:
        refs = map(state.ready.packed.pack, state.ready.refs())
        return drop_events(state, {DropReason.BY_TRAINER: refs}, now, "purge")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetCurrentStep(RecordedOnly):
    """The trainer is at this step, whatever batches it asks for."""

    step: int

    def _decide(self, state: SamplerState, now: Now) -> list[SamplerEvent]:
        if self.step < 0:
            raise InvalidRequest(f"step {self.step} is negative; steps count from 0")
        if state.current_step is not None and self.step < state.current_step:
            raise InvalidRequest(
                f"step {self.step} is before {state.current_step}, which was the current step "
                "before; a trainer that goes back says so with resume(…)"
            )
        _check_exists(state, self.step, "set_current_step")
        drops = useless_groups(state, state.choosing, self.step, now["now_ts"], all_equal=False)
        events = drop_events(state, drops, now)
        if self.step == state.current_step:
            return events
        epoch = state.trainer_epoch
        return [CurrentStepSet(**now, trainer_epoch=epoch, step=self.step), *events]


def _check_exists(state: SamplerState, step: int, call: str) -> None:
    """Weights ``step`` can be there by now: a trainer that counts by another unit would have all
    that is ready dropped as too old."""
    if step > state.next_step:
        raise UnknownStep(
            f"weights {step} cannot be there yet: batch n turns weights n into n + 1, and "
            f"the next batch to be served is {state.next_step}; {call}(n) with n of at "
            f"most {state.next_step}, or resume({step - 1}) from the checkpoint of these "
            "weights"
        )


def _said(batch: ServedBatch) -> tuple[object, ...]:
    return batch.status, batch.skipped, batch.filtered, batch.outcome_bytes
