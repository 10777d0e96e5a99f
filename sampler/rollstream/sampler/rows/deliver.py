"""Makes the results of commands that are read from the store, once they are decided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rollstream.folds.batches.served import ServedBatch
from rollstream.folds.branches import branches_at
from rollstream.folds.group.known import KnownGroup
from rollstream.folds.state import NOTHING, SamplerState
from rollstream.sampler.batch.assembled import AssembledBatch, assemble
from rollstream.sampler.batch.joining import GroupRows
from rollstream.sampler.batch.share import Share
from rollstream.sampler.decide.batches.held_batches import (
    group_of,
    groups_of,
    is_recorded,
    not_in_record,
)
from rollstream.sampler.decide.batches.next_batch import BatchCommand, NextStep, Replace
from rollstream.sampler.decide.command import Command, FromStore, Now, R, Unread
from rollstream.sampler.decide.queries.looks import (
    AskRecorded,
    AskWithoutFiles,
    Flush,
    ReadBatch,
    ReadGroup,
)
from rollstream.sampler.decide.queries.sampling import ReadGroups
from rollstream.sampler.errors import BatchUnsettled, GroupsUnreadable
from rollstream.sampler.rows.ahead import MakesAhead
from rollstream.sampler.rows.payloads import Payloads
from rollstream.sampler.rows.recorded import RecordedBatches
from rollstream.sampler.rows.resolved import HeldBatches, Resolved
from rollstream.schemas.events import BatchServed, Replaced, SamplerEvent
from rollstream.schemas.ids import MIXED_POLICY
from rollstream.schemas.records import RolloutGroup, records_from
from rollstream.store.blobs import Blobs
from rollstream.streams.folds.refs import ref_of


class Delivery:
    """Says what is to be read for a command, and reads it.

    Batches that are held are read through the cache. What only the record has, and what people
    look at, is read beside it: it pushes out nothing, and no batch waits for it.

    Args:
        wait_written: called when that is asked, returns what waits until every decision that was
            handed in stands in a file.
        reader: reads rows while the decision about them is appended; None: nobody does.
    """

    def __init__(
        self,
        store: Blobs,
        payloads: Payloads,
        ahead: MakesAhead,
        recorded: RecordedBatches,
        wait_written: Callable[[], Callable[[], None]],
        reader: Executor | None = None,
    ) -> None:
        self._payloads = payloads
        self._past = Payloads(store, 0, payloads.timeout_s)
        self._ahead = ahead
        self._recorded = recorded
        self._wait_written = wait_written
        self._reader = reader
        self._held = HeldBatches()

    @property
    def groups_read(self) -> int:
        """Number of groups read since the start, without those that the cache had."""
        return self._payloads.groups_read + self._past.groups_read

    def close(self) -> None:
        """Makes nothing ahead any more. Idempotent."""
        self._ahead.close()
        self._recorded.close()

    def result(self, command: FromStore[R], state: SamplerState) -> Unread[R] | R:
        """What a confirmed command is answered with: it takes of the state what it needs, and
        costs a rank of a batch the same however many others there are.

        Raises:
            InvalidRequest: a group is not held.
        """
        asked: Command[Any] = command
        found: Any
        match asked:
            case BatchCommand():
                found = self._batch(asked, state)
            case AskWithoutFiles():
                found = self._without_files(asked, state)
            case AskRecorded():
                there = asked.step in state.batches or is_recorded(asked.step, state)
                batch = ReadBatch(step=asked.step, columns=asked.columns)
                found = self._batch(batch, state) if there else None
            case ReadGroup():
                found = self._group(asked, state)
            case ReadGroups():
                groups = asked.groups(state)
                # Each shows the scores that there are when it is decided.
                found = Unread(object(), lambda: tuple([self._with_rows(one) for one in groups]))
            case Flush():
                # Each waits for what was decided before it.
                found = Unread(object(), self._wait_written(), "files")
            case _:
                raise AssertionError(f"{command} is not read from the store")
        return cast("Unread[R] | R", found)

    def begin_early(
        self, command: Command[Any], events: Sequence[SamplerEvent], state: SamplerState
    ) -> None:
        """Has read what the command's batch needs once these events are confirmed, so that it is
        done while they are appended; shows it to nobody."""
        decided = [event for event in events if isinstance(event, BatchServed)]
        if not (self._reader and decided and isinstance(command, BatchCommand)):
            return
        (batch,) = decided
        if command.payloads != "sampler" or self._ahead.has_made(batch.step, batch.digest):
            return
        chosen = [*batch.groups, *(one.group for one in batch.carried)]
        groups = [state.sealed(ref_of(one)) for one in chosen]
        ready = len(state.ready) - len(batch.groups)
        early = partial(self._payloads.read_early, batch.step, groups, command.columns, ready)
        self._reader.submit(early)

    def withhold(
        self, command: Command[Any], events: Sequence[SamplerEvent], state: SamplerState
    ) -> None:
        """From now on no share of a batch is handed out if these events replace groups of it that
        cannot be read; ``BatchUnsettled`` if one was."""
        if not isinstance(command, Replace) or command.outcome != "unreadable":
            return
        if not any(isinstance(event, Replaced) for event in events):
            return
        if not self._payloads.handed_out.begin_replacing(
            command.step, state.batches[command.step].digest
        ):
            raise BatchUnsettled(
                f"a share of the batch of step {command.step} was handed out before groups of it "
                "were replaced, so that they stay; repeat the call"
            )

    def settle(self, state: SamplerState) -> None:
        """What was withheld and is as it was may be handed out: its groups were not replaced."""
        held = state.batches.items()
        self._payloads.handed_out.settle({step: batch.digest for step, batch in held})

    def _batch(self, command: BatchCommand, state: SamplerState) -> Unread[AssembledBatch | Share]:
        served, ready = state.batches.get(command.step), len(state.ready)
        share = command.dp_rank, command.dp_size, command.columns, command.payloads
        if served is None:
            epoch, begun = state.trainer_epoch, state.branches.entries()
            lineage = state.choosing.lineage

            def read_record() -> AssembledBatch | Share:
                recorded, groups = self._recorded.batch(command.step, epoch)
                command.check_same_request(recorded, lambda: groups)
                branches = branches_at(begun, recorded.policy_epoch, recorded.chosen_at)
                resolved = Resolved.of(recorded, groups, lineage, branches)
                try:
                    return self._read(command, resolved, ready, self._past)
                except GroupsUnreadable as error:
                    raise not_in_record(command.step, str(error)) from error

            return Unread((command.decision_key(), epoch, share), read_record, "record")
        resolved = self._held.of(served, state)
        # Who looks at an old batch has it read beside the others; it is final, so nothing is to
        # be noted of who has it. The step before the next one is what that one carries from.
        is_old = not command.claims and served.final and command.step < state.next_step - 1
        payloads = self._past if is_old else self._payloads
        read = partial(self._read, command, resolved, ready, payloads)
        key = command.step, served.chosen_at, served.digest, share  # Decided anew it is another.
        return Unread(key, read, "past" if is_old else "now")

    def _read(
        self, command: BatchCommand, resolved: Resolved, ready: int, payloads: Payloads
    ) -> AssembledBatch | Share:
        share, decided = resolved.share(command, ready), resolved.decided
        if command.payloads == "rank":
            payloads.check_files(decided, resolved.groups, command.columns)
            return share
        is_now = payloads is self._payloads
        made = self._ahead.take(share) if is_now else None
        if made is None:
            slots = [slot for slot, _ in share.groups]
            parts = payloads.parts_of_batch(decided, resolved.groups, slots, share.columns, ready)
            made = assemble(share, parts, payloads.token_arrays)
        if is_now:
            self._ahead.handed_out(command, share)
        return made

    def _without_files(
        self, command: AskWithoutFiles, state: SamplerState
    ) -> Unread[AssembledBatch] | None:
        served = state.batches.get(command.step)
        if served is None:
            return None
        resolved = self._held.of(served, state)
        gone = [resolved.groups[slot] for slot in command.lost]
        if any(group.group.policy_version == MIXED_POLICY for group in gone):
            return None
        whole = resolved.share(ReadBatch(step=command.step), len(state.ready))

        def read() -> AssembledBatch:
            others = [pair for pair in whole.groups if pair[0] not in command.lost]
            parts = {part.slot: part for part in self._past.parts(command.step, others)}
            sealed = self._recorded.rows_as_sealed(gone)
            for slot, group, rows in zip(command.lost, gone, sealed, strict=True):
                parts[slot] = GroupRows(slot, group, rows, 0)
            return assemble(whole, [parts[slot] for slot, _ in whole.groups], lambda _: {})

        return Unread((command, served.digest), read)

    def _group(self, command: ReadGroup, state: SamplerState) -> Unread[RolloutGroup]:
        served = state.batches.get(command.step)
        if served is None:
            recorded = partial(self._recorded_group, command, state.trainer_epoch)
            return Unread(command, recorded, "record")
        group = group_of(served, command.slot, state)
        mask = served.all_groups[command.slot].row_mask
        return Unread(command, partial(self._with_rows, group, mask))

    def _recorded_group(self, command: ReadGroup, trainer_epoch: int) -> RolloutGroup:
        served, groups = self._recorded.batch(command.step, trainer_epoch)
        command.check(served)
        mask = served.all_groups[command.slot].row_mask
        return self._with_rows(groups[command.slot], mask)

    def _with_rows(
        self, known: KnownGroup, row_mask: NDArray[np.bool_] | None = None
    ) -> RolloutGroup:
        """The group with all fields of its rollouts, or of those of the mask, and its scores."""
        records = records_from(self._past.all_fields(known))
        for score in known.scores:
            was = records[score.row]
            rewards = {**was.rewards, **score.rewards}
            records[score.row] = replace(was, reward=score.reward, rewards=rewards)
        if row_mask is not None:
            records = [record for record, kept in zip(records, row_mask, strict=True) if kept]
        return RolloutGroup.of(known.group.group_id, records, known.sealed_ts)


def likely_shares(command: NextStep, state: SamplerState, now: Now) -> list[Share]:
    """The shares of all ranks in the batch that would be decided now for the next step, asked for
    as this one was; of a shaped one without what it will carry. Empty: there are too few groups, or
    another step is the next one."""
    following = command.following()
    if following.step != state.next_step:
        return []
    decided = following.decide(state, now)[-1:]
    if not decided or not isinstance(decided[0], BatchServed):
        return []
    served = ServedBatch.of(decided[0], NOTHING)
    resolved = Resolved.of(
        served, groups_of(served, state), state.choosing.lineage, state.branches.now()
    )
    ranks = [replace(following, dp_rank=rank) for rank in range(following.dp_size)]
    return [resolved.share(rank, len(state.ready)) for rank in ranks]
