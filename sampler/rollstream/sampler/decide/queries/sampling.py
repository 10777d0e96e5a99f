"""Groups that somebody looks at and that no decision is made about. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from rollstream.folds.group.known import KnownGroup
from rollstream.folds.group.scored import served_scores
from rollstream.folds.remedies import why_dropped
from rollstream.folds.state import SamplerState
from rollstream.runtime.config.explain import explain
from rollstream.runtime.config.sections import SamplerConfig
from rollstream.sampler.decide.choosing.choose import Asked, Chosen
from rollstream.sampler.decide.choosing.dropping import Drops
from rollstream.sampler.decide.choosing.requests import (
    check_published,
    check_request,
    choose,
    shortage_of,
)
from rollstream.sampler.decide.command import FromStore, Look, ResultContext
from rollstream.sampler.errors import InvalidRequest
from rollstream.schemas.choosing import Choosing
from rollstream.schemas.order import PolicyRef
from rollstream.schemas.records import RolloutGroup

GROUPS_MAX = 1_024  # That one call reads: their rows are in memory together.


@dataclass(frozen=True, slots=True, eq=False)
class GroupSummary:
    """A sealed group, without its rows.

    Attributes:
        group_id: as files and batches have it.
        environment: of its rollouts.
        example_id: of its rollouts.
        policies: that sampled it, the oldest first: lineage, epoch and step; -1: unknown.
        rows: segments in it.
        row_mask: bool [rows], the rows that a batch would have; None: all. The others are too old.
        sealed_ts: as of ``RolloutGroup``.
    """

    group_id: str
    environment: str
    example_id: str
    policies: tuple[PolicyRef, ...]
    rows: int
    row_mask: NDArray[np.bool_] | None
    sealed_ts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleGroups(Look[tuple[GroupSummary, ...]]):
    """The groups that the next batch would have.

    Attributes:
        asked: of any step: the next one is put in.
        settings: instead of the configured ones, by their keys.
    """

    asked: Asked
    settings: Mapping[str, Any]

    def result(self, state: SamplerState, context: ResultContext) -> tuple[GroupSummary, ...]:
        choosing = _with_settings(state, self.settings)
        asked = replace(self.asked, step=state.next_step)
        check_request(state, choosing, asked)
        chosen, drops = choose(state, choosing, asked, context.now_us)
        if chosen is None:
            unfit = _why_unfit(drops, state, choosing)
            raise shortage_of(state, choosing, asked)._replace(unfit=unfit).error(state)
        return tuple(map(_summary, chosen))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadGroups(FromStore[tuple[RolloutGroup, ...]]):
    """Groups of these ids, with all fields of their rollouts, in this order."""

    claims: ClassVar[bool] = False
    group_ids: tuple[str, ...]

    def groups(self, state: SamplerState) -> list[KnownGroup]:
        """These; ``InvalidRequest`` where one is not held."""
        known = {one.group.group_id: one for one in state.known_as(set(self.group_ids))}
        missing = [one for one in self.group_ids if one not in known]
        if missing:
            raise InvalidRequest(
                f"sampler {state.name!r} holds no group {', '.join(missing[:5])}: it is of none of "
                "its environments, was not sealed yet, or has ended; files have those that ended, "
                "by column group_id, and `rollstream lineage` leads there from a step or a rollout"
            )
        found = [known[one] for one in self.group_ids]
        return [one._replace(scores=served_scores(one, state.choosing)) for one in found]


def _why_unfit(drops: Drops, state: SamplerState, choosing: Choosing) -> list[str]:
    """Why groups are left out under these settings; nothing drops them on record."""
    return [
        f"{len(groups)} are left out as {why.value}: "
        + why_dropped(why, state.name, choosing, state.policy_epoch)
        for why, groups in sorted(drops.items())
        if groups
    ]


def _with_settings(state: SamplerState, settings: Mapping[str, Any]) -> Choosing:
    """The state's settings, but for these; they are checked as in a configuration."""
    if not settings:
        return state.choosing
    try:
        section = SamplerConfig.model_validate(
            {**asdict(state.choosing), "environments": state.choosing.names(), **settings}
        )
    except ValidationError as error:
        raise InvalidRequest("; ".join([explain(one, {}) for one in error.errors()])) from None
    versions = settings.get("prefer_policy_versions", ())
    check_published(state, "prefer_policy_versions", versions)
    return replace(state.choosing, **{name: getattr(section, name) for name in settings})


def _summary(chosen: Chosen) -> GroupSummary:
    known, kept = chosen
    group = known.group
    sizes = group.rows, kept.row_mask
    return GroupSummary(group.group_id, *known.key, known.policies, *sizes, known.sealed_ts)
