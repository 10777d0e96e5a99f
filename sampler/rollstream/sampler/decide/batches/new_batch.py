"""The batch of a step that is decided now. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rollstream.folds.batches.served import batch_digest
from rollstream.folds.group.scored import served_scores
from rollstream.folds.state import SamplerState
from rollstream.sampler.decide.choosing.choose import ALGORITHM, Asked, Chosen
from rollstream.sampler.decide.choosing.requests import check_request, shortage_of
from rollstream.sampler.decide.command import Now
from rollstream.sampler.decide.ratio import held_back
from rollstream.sampler.decide.shortages import Shortage
from rollstream.sampler.errors import TooManyOpenBatches, UnknownStep
from rollstream.schemas.choosing import Choosing
from rollstream.schemas.events import BatchServed, CarriedRows, ChosenGroup


def check_new_step(state: SamplerState, asked: Asked) -> None:
    """Steps are decided one after the other, from what is configured.

    Raises:
        UnknownStep, InvalidRequest, TooManyOpenBatches.
    """
    choosing, step = state.choosing, asked.step
    if step != state.next_step:
        held = "no batch is held"
        if state.batches:
            held = f"held are steps {min(state.batches)} to {max(state.batches)}"
        raise UnknownStep(
            f"step {step} was asked for, but the next one to be served is "
            f"{state.next_step}; {held}. Ask for {state.next_step}, or resume from the "
            "checkpoint you have"
        )
    check_request(state, choosing, asked)
    opened = len(state.open_batches())
    if opened >= choosing.max_open_batches:
        raise TooManyOpenBatches(
            f"{opened} served batches are not final, and max_open_batches is "
            f"{choosing.max_open_batches}; call checkpointed(step) after saving the weights"
        )


def shortage_of_new(state: SamplerState, asked: Asked) -> Shortage:
    """What a new batch of so many groups lacks."""
    short = shortage_of(state, state.choosing, asked)
    held = held_back(state, asked.num_groups)
    if held is None:
        return short
    more = state.choosing.names(), len(state.ready) + held.lacking
    enough = len(state.ready) >= asked.num_groups
    return short._replace(quotas=[*short.quotas, more], held=held if enough else None)


def batch_served(
    state: SamplerState,
    now: Now,
    asked: Asked,
    request: str,
    choice: Sequence[Chosen],
    carried: tuple[CarriedRows, ...] = (),
) -> BatchServed:
    """The event that records the choice."""
    groups = tuple(chosen_group(one, state.choosing) for one in choice)
    return BatchServed(
        **now,
        trainer_epoch=state.trainer_epoch,
        step=asked.step,
        batch_id=f"{state.name}-{state.trainer_epoch}-{asked.step}",
        seed=state.choosing.seed if asked.seed is None else asked.seed,
        request=request,
        policy_step=state.newest_step_on_branch(),
        cursor=state.cursor(),
        groups=groups,
        digest=batch_digest(groups, carried),
        choosing=state.choosing.recorded(),
        algorithm=ALGORITHM,
        policy_epoch=state.policy_epoch,
        current_step=state.clock(asked.step),
        carried=carried,
    )


def chosen_group(chosen: Chosen, choosing: Choosing) -> ChosenGroup:
    """As events have it."""
    group, kept = chosen
    header, scores = group.group, served_scores(group, choosing)
    return ChosenGroup(*group.ref, header.group_id, header.digest, *kept[:3], scores)
