"""Requests for groups: whether they can be met, what meets them, and what they still lack. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, get_args

from rollstream.folds.batches.served import ServedBatch
from rollstream.folds.state import NOTHING, SamplerState
from rollstream.sampler.decide.capacity import least_capacity
from rollstream.sampler.decide.choosing.choose import (
    Asked,
    Chosen,
    Grouping,
    on_policy_groups,
    quotas,
    sample_groups,
)
from rollstream.sampler.decide.choosing.dropping import Drops, useless_groups
from rollstream.sampler.decide.shortages import Shortage
from rollstream.sampler.errors import InvalidRequest
from rollstream.schemas.choosing import Choosing
from rollstream.schemas.order import off_branch


def choose(
    state: SamplerState, choosing: Choosing, asked: Asked, now_us: int
) -> tuple[list[Chosen] | None, Drops]:
    """The groups that a new batch has, or None where there are too few; and those that it, and
    every later one, leaves out for good."""
    all_equal = asked.accept == "nonzero_std"
    drops = useless_groups(state, choosing, state.clock(asked.step), now_us, all_equal=all_equal)
    return sample_groups(state, choosing, asked, drops, now_us=now_us), drops


def check_accept(accept: Any) -> None:
    """Raises ``InvalidRequest`` where it is no ``Accept``, or None."""
    if accept is not None and not (isinstance(accept, str) and accept == "nonzero_std"):
        raise InvalidRequest(f"accept {accept!r:.200} is unknown; use 'nonzero_std' or None")


def check_chosen_by(asked: Asked) -> None:
    """Raises ``InvalidRequest`` where it could choose nothing, whatever is ready."""
    check_accept(asked.accept)
    if asked.num_groups < 1 or asked.start_offset < 0:
        raise InvalidRequest(
            f"num_groups {asked.num_groups} with start_offset {asked.start_offset} chooses "
            "nothing; ask for 1 or more groups from an offset of 0 or more"
        )
    if asked.grouping not in get_args(Grouping):
        raise InvalidRequest(f"grouping {asked.grouping!r} is unknown; use 'strict' or 'mixed'")


def check_published(state: SamplerState, name: str, versions: Iterable[str]) -> None:
    """Raises ``InvalidRequest`` where no policy was published under one of the versions."""
    unpublished = {*versions} - state.published.policies.keys()
    if unpublished:
        raise InvalidRequest(
            f"{name} names {sorted(unpublished)}, which publish_policy never named; the newest "
            "versions are those of SamplerView.policy() and of batches"
        )


def check_mix(name: str, mix: Mapping[str, float], served: Collection[str]) -> None:
    """Raises ``InvalidRequest`` where it has environments that sampler ``name`` does not serve."""
    unknown = sorted(set(mix) - set(served))
    if unknown:
        raise InvalidRequest(
            f"mix names {unknown}, but sampler {name!r} serves {sorted(served)}; correct the name "
            "(of a mixture, its maker's), or add it to the sampler's environments"
        )


def check_request(state: SamplerState, choosing: Choosing, asked: Asked) -> None:
    """Raises ``InvalidRequest`` where no state of the sampler could meet it, or the version that it
    asks for is not published."""
    check_mix(state.name, asked.mix or {}, choosing.names())
    if asked.policy_version is not None:
        check_published(state, "policy_version", [asked.policy_version])
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
    if asked.policy_version is not None:
        sources.append(f"all of them by policy version {asked.policy_version!r} alone")
    elif asked.grouping == "strict":
        sources.append("each of them by one policy")
    return Shortage(asked.step, asked.num_groups, ", ".join(sources), wanted)


def was_on_policy(state: SamplerState, batch: ServedBatch, slot: int) -> bool:
    """Whether the policy that was the newest when the batch was decided sampled all of the group
    in the slot; after a resume that is one of an earlier epoch that the trainer kept, until it
    publishes."""
    known = state.group(batch.groups[slot])
    newest = batch.event.policy_step
    if known is None or newest == NOTHING or {one.step for one in known.policies} != {newest}:
        return False
    epoch = batch.event.policy_epoch
    branches = state.branches_of(batch)
    return all(
        one.lineage == state.choosing.lineage
        and one.epoch <= epoch
        and not off_branch(one, branches)
        for one in known.policies
    )
