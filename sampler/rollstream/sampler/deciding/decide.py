"""A command and a state to events; the state is read and never changed. Pure.

No events mean: nothing is left to be said (the answer stands in the state), or not enough groups
are there yet; ``answer`` tells which.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rollstream.sampler.deciding.choose import sample_groups
from rollstream.sampler.deciding.commands import (
    Ack,
    Command,
    EvictOverCapacity,
    MarkCheckpointed,
    NextBatch,
    PublishPolicy,
    Replace,
    Resume,
)
from rollstream.sampler.deciding.refusals import (
    check_acked,
    check_new_step,
    check_policy,
    check_replaced,
    check_resumed,
    check_same_request,
    check_served,
    check_trainer,
)
from rollstream.schemas.events import (
    Acked,
    BatchServed,
    Checkpointed,
    ChosenGroup,
    Dropped,
    PolicyPublished,
    Replaced,
    Resumed,
    SamplerEvent,
)
from rollstream.schemas.order import PolicyRef
from rollstream.schemas.reasons import DropReason
from rollstream.streams.folds.refs import GroupRef
from rollstream.streams.folds.sampler.eligible import dropped_for
from rollstream.streams.folds.sampler.known import KnownGroup
from rollstream.streams.folds.sampler.served import batch_digest
from rollstream.streams.folds.sampler.state import NOTHING, SamplerState

DROPPED_PER_EVENT_MAX = 8_192  # So that an event stays far below a message's limit.


class Now(NamedTuple):
    """Under whose claim, and when, it is decided."""

    epoch: int
    nonce: str
    now_us: int


def decide(command: Command, state: SamplerState, now: Now) -> list[SamplerEvent]:
    """The events that the command calls for.

    Raises:
        Fenced: the command's trainer belongs to an older epoch.
        RequestDiffers, UnknownStep, InvalidRequest, TooManyOpenBatches.
    """
    if not isinstance(command, Resume):
        check_trainer(command.trainer_epoch, state)
    match command:
        case NextBatch():
            return _next_batch(command, state, now)
        case Replace():
            return _replace(command, state, now)
        case Ack():
            return _ack(command, state, now)
        case MarkCheckpointed():
            return _checkpoint(command, state, now)
        case Resume():
            return [_resume(command, state, now)]
        case PublishPolicy():
            return _publish(command, state, now)
        case EvictOverCapacity():
            return _drops({DropReason.CAPACITY: state.oldest(state.excess())}, now)
        case _:
            return []


def _next_batch(command: NextBatch, state: SamplerState, now: Now) -> list[SamplerEvent]:
    served = state.batches.get(command.step)
    if served is not None:
        check_same_request(command, served)
        return []
    check_new_step(command, state)
    reference = state.reference(command.step)
    drops = _useless(state, reference, all_equal=command.accept == "nonzero_std")
    events = _drops(drops, now)
    chosen = sample_groups(
        state.ready,
        command.num_groups,
        environments=state.config.environments,
        seed=state.config.seed,
        step=command.step,
        recency=state.config.recency,
        mix=command.mix,
        without={ref for refs in drops.values() for ref in refs},
    )
    if chosen is not None:
        groups = tuple(map(_chosen, chosen))
        newest = state.newest_policy()
        events.append(
            BatchServed(
                epoch=now.epoch,
                nonce=now.nonce,
                now_ts=now.now_us,
                trainer_epoch=state.trainer_epoch,
                step=command.step,
                batch_id=f"{state.name}-{state.trainer_epoch}-{command.step}",
                seed=state.config.seed,
                request=command.request(),
                policy_step=NOTHING if newest is None else newest.step,
                cursor=state.cursor(),
                groups=groups,
                digest=batch_digest(groups),
            )
        )
    return events


def _replace(command: Replace, state: SamplerState, now: Now) -> list[SamplerEvent]:
    batch = check_served(command.step, state)
    if check_replaced(command, batch):
        return []
    asked = json.loads(batch.event.request)
    drops = _useless(
        state, state.reference(command.step), all_equal=asked["accept"] == "nonzero_std"
    )
    events = _drops(drops, now)
    without = {ref for refs in drops.values() for ref in refs}
    chosen: list[KnownGroup] = []
    for slot in command.slots:
        # An environment's share of the batch stays what it was.
        found = sample_groups(
            state.ready,
            1,
            environments=(batch.groups[slot].environment,),
            seed=state.config.seed,
            step=command.step,
            start_offset=1 + batch.replacements,
            recency=state.config.recency,
            without=without,
        )
        if found is None:
            return events
        chosen.extend(found)
        without.add(found[0].ref)
    groups = list(batch.groups)
    for slot, group in zip(command.slots, chosen, strict=True):
        groups[slot] = _chosen(group)
    events.append(
        Replaced(
            epoch=now.epoch,
            nonce=now.nonce,
            now_ts=now.now_us,
            trainer_epoch=state.trainer_epoch,
            step=command.step,
            batch_id=batch.event.batch_id,
            reason=command.reason,
            slots=np.array(command.slots, np.int32),
            groups=tuple(map(_chosen, chosen)),
            cursor=state.cursor(),
            digest=batch_digest(groups),
        )
    )
    return events


def _ack(command: Ack, state: SamplerState, now: Now) -> list[SamplerEvent]:
    if not check_acked(command, check_served(command.step, state)):
        return []
    return [
        Acked(
            epoch=now.epoch,
            nonce=now.nonce,
            now_ts=now.now_us,
            trainer_epoch=state.trainer_epoch,
            step=command.step,
            batch_id=command.batch_id,
            status=command.status,
        )
    ]


def _checkpoint(command: MarkCheckpointed, state: SamplerState, now: Now) -> list[SamplerEvent]:
    if not any(at <= command.step for at, batch in state.batches.items() if not batch.final):
        if command.step > state.final_step:
            check_served(command.step, state)
        return []
    check_served(command.step, state)
    return [
        Checkpointed(
            epoch=now.epoch,
            nonce=now.nonce,
            now_ts=now.now_us,
            trainer_epoch=state.trainer_epoch,
            step=command.step,
        )
    ]


def _resume(command: Resume, state: SamplerState, now: Now) -> SamplerEvent:
    check_resumed(command, state)
    saved = command.checkpointed_step
    return Resumed(
        epoch=now.epoch,
        nonce=now.nonce,
        now_ts=now.now_us,
        trainer_epoch=state.trainer_epoch + 1,
        checkpointed_step=saved,
        later=command.later,
        first_step=0 if saved is None else saved + 1,
        # As long as nobody can have sampled with a policy of this epoch, there is no other branch.
        policy_epoch=state.policy_epoch + 1 if state.epoch_used() else state.policy_epoch,
    )


def _publish(command: PublishPolicy, state: SamplerState, now: Now) -> list[SamplerEvent]:
    version = check_policy(command, state)
    if version is None:
        return []
    return [
        PolicyPublished(
            epoch=now.epoch,
            nonce=now.nonce,
            now_ts=now.now_us,
            trainer_epoch=state.trainer_epoch,
            step=command.step,
            policy_version=version,
            lineage=state.config.lineage,
            policy_epoch=state.policy_epoch,
        )
    ]


def _useless(
    state: SamplerState, reference: PolicyRef, *, all_equal: bool
) -> dict[DropReason, list[GroupRef]]:
    """Ready groups that will never be served, by the first reason that applies."""
    found: dict[DropReason, list[GroupRef]] = {}
    branches = tuple(state.branches.values())
    for policies, refs in state.ready.by_policies().items():
        reason = dropped_for(policies, reference, branches, state.config.max_policy_lag)
        if reason is not None:
            found.setdefault(reason, []).extend(refs)
    if all_equal:
        gone = {ref for refs in found.values() for ref in refs}
        equal = [group.ref for group in state.ready.all_equal() if group.ref not in gone]
        found[DropReason.FILTERED] = equal
    excess = state.excess() - sum(map(len, found.values()))
    if excess > 0:
        gone = {ref for refs in found.values() for ref in refs}
        oldest = [ref for ref in state.oldest(excess + len(gone)) if ref not in gone]
        found[DropReason.CAPACITY] = oldest[:excess]
    return found


def _drops(drops: dict[DropReason, list[GroupRef]], now: Now) -> list[SamplerEvent]:
    events: list[SamplerEvent] = []
    for reason, refs in sorted(drops.items()):
        ordered = sorted(refs)
        for start in range(0, len(ordered), DROPPED_PER_EVENT_MAX):
            events.append(_dropped(ordered[start : start + DROPPED_PER_EVENT_MAX], reason, now))
    return events


def _dropped(refs: Sequence[GroupRef], reason: DropReason, now: Now) -> Dropped:
    return Dropped(
        epoch=now.epoch,
        nonce=now.nonce,
        now_ts=now.now_us,
        reason=reason.value,
        groups=tuple(ref.event_ref() for ref in refs),
    )


def _chosen(group: KnownGroup) -> ChosenGroup:
    return ChosenGroup(
        environment=group.ref.environment,
        generation=group.ref.generation,
        partition=group.ref.partition,
        offset=group.ref.offset,
        index=group.ref.index_in_flush,
        group_id=group.group.group_id,
        digest=group.group.digest,
    )
