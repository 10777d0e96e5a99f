"""Requests for groups: whether they can be met, what meets them, and what they still lack. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rollstream.sampler.deciding.capacity import least_capacity
from rollstream.sampler.deciding.choose import (
    Asked,
    Choice,
    Chosen,
    on_policy_groups,
    quotas,
    sample_groups,
)
from rollstream.sampler.deciding.dropping import Drops, refs_of, useless_groups
from rollstream.sampler.deciding.shortages import Shortage
from rollstream.sampler.errors import InvalidRequest
from rollstream.schemas.choosing import Choosing
from rollstream.schemas.order import off_branch
from rollstream.streams.folds.sampler.served import ServedBatch
from rollstream.streams.folds.sampler.state import NOTHING, SamplerState


def choose(
    state: SamplerState, choosing: Choosing, asked: Asked, now_us: int
) -> tuple[list[Chosen] | None, Drops]:
    """The groups that a new batch has, or None where there are too few; and those that it, and
    every later one, leaves out for good."""
    all_equal = asked.accept == "nonzero_std"
    clock = state.clock(asked.step)
    drops = useless_groups(
        state, choosing, clock, now_us, all_equal=all_equal, algorithm=asked.algorithm
    )
    choice = sample_groups(state, choosing, asked, now_us=now_us, without=refs_of(drops))
    add_late(drops, choice)
    return choice.groups, drops


def add_late(drops: Drops, choice: Choice) -> None:
    """Adds the groups that were found to be too old while choosing."""
    for reason, groups in choice.dropped.items():
        drops.setdefault(reason, {}).update({group.ref: kept for group, kept in groups})


def check_accept(accept: Any) -> None:
    """Raises ``InvalidRequest`` where it is no ``Accept``, or None."""
    if accept is not None and not (isinstance(accept, str) and accept == "nonzero_std"):
        raise InvalidRequest(f"accept {accept!r:.200} is unknown; use 'nonzero_std' or None")


def check_mix(name: str, mix: Mapping[str, float], served: Collection[str]) -> None:
    """Raises ``InvalidRequest`` where it has environments that sampler ``name`` does not serve."""
    unknown = sorted(set(mix) - set(served))
    if unknown:
        raise InvalidRequest(
            f"mix (of a mixture, the names of its makers) names {unknown}, but sampler "
            f"{name!r} serves {sorted(served)}; correct the name, or add it to the "
            "sampler's environments"
        )


def check_request(name: str, choosing: Choosing, asked: Asked) -> None:
    """Raises ``InvalidRequest`` where no state of sampler ``name`` could meet it."""
    check_mix(name, asked.mix or {}, choosing.names())
    if asked.num_groups > choosing.capacity_groups:
        raise InvalidRequest(
            f"num_groups {asked.num_groups} is above capacity_groups {choosing.capacity_groups}: "
            "that many would never be ready; raise the capacity"
        )
    if choosing.capacity is None:
        return
    least = least_capacity(choosing, choosing.capacity)
    for among, wanted in quotas(choosing.names(), asked.num_groups, asked.mix):
        if wanted > least * len(among):
            raise InvalidRequest(
                f"num_groups {asked.num_groups} takes {wanted} groups of {' or '.join(among)}, and "
                f"with capacity {choosing.capacity} only {least} of each environment are kept for "
                f"certain, {least * len(among)} in all: that many might never be ready; raise the "
                "capacity"
            )


def shortage_of(state: SamplerState, choosing: Choosing, asked: Asked) -> Shortage:
    """What a request lacks that could not be met."""
    newest = state.newest_policy()
    weights = "the newest weights" if newest is None else f"weights {newest.step}"
    sources = []
    wanted = quotas(choosing.names(), asked.num_groups, asked.mix)
    for names, count in wanted:
        share = on_policy_groups(count, choosing)
        on_policy = f", {share} of them by {weights}" if share else ""
        sources.append(f"{count} of {' or '.join(names)}{on_policy}")
    return Shortage(asked.step, asked.num_groups, ", ".join(sources), wanted)


def was_on_policy(state: SamplerState, batch: ServedBatch, slot: int, algorithm: int) -> bool:
    """Whether the policy that was the newest when the batch was decided sampled all of the group
    in the slot; after a resume that is one of an earlier epoch that the trainer kept, until it
    publishes."""
    known = state.group(batch.groups[slot])
    newest = batch.event.policy_step
    if known is None or newest == NOTHING or {one.step for one in known.policies} != {newest}:
        return False
    if algorithm < 4:
        return True
    epoch = batch.event.policy_epoch
    branches = state.branches_of(batch)
    return all(
        one.lineage == state.choosing.lineage
        and one.epoch <= epoch
        and not off_branch(one, branches)
        for one in known.policies
    )
