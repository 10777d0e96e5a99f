"""A slow, obvious model of choosing: every slot looks at every ready group."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import xxhash

from rollstream.folds.group.known import Key, KnownGroup
from rollstream.folds.state import SamplerState
from rollstream.sampler.decide.choosing.choose import Asked, quotas
from rollstream.schemas.choosing import Choosing
from rollstream.streams.folds.refs import GroupRef

Matches = Callable[[KnownGroup], bool]
Age = tuple[int, int, GroupRef]


def expected(
    state: SamplerState, turns: dict[Key, int], choosing: Choosing, asked: Asked
) -> list[GroupRef] | None:
    """What is chosen of groups of one lineage and epoch, where nothing is over a capacity or too
    old; None: there are too few. ``turns``: the newest policy's step when each key was served."""
    ready = [state.sealed(ref) for ref in state.ready.refs()]
    kept = _kept(ready, state, choosing, asked)
    eligible = _eligible(kept, state, asked)
    newest = state.newest_policy()
    latest = max((group.policies[-1].step for group in eligible), default=0)
    if newest is not None:
        latest = newest.step
    preferred = {state.published.policies[v][1] for v in choosing.prefer_policy_versions}

    def on_policy(group: KnownGroup) -> bool:
        return {policy.step for policy in group.policies} == {latest}

    def is_preferred(group: KnownGroup) -> bool:
        return preferred.issuperset(policy.step for policy in group.policies)

    found: list[GroupRef] = []
    for environments, wanted in quotas(choosing.names(), asked.num_groups, asked.mix):
        among = [group for group in eligible if group.key.environment in environments]
        share = math.ceil(wanted * choosing.on_policy_fraction)
        stages: list[tuple[Matches, int, bool]] = [
            (on_policy, share, True),
            (is_preferred, wanted if preferred else 0, False),
            (lambda group: True, wanted, True),
        ]
        chosen: list[KnownGroup] = []
        for matches, until, needed in stages:
            stage = [group for group in among if matches(group) and group not in chosen]
            left = [group for group in kept if group not in chosen]
            if choosing.order == "ready":
                chosen += _as_sealed(stage, asked.start_offset)[: max(0, until - len(chosen))]
                if needed and len(chosen) < until:
                    return None
                continue
            if choosing.recency != "uniform":
                chosen += _by_recency(stage, environments, len(chosen), until, choosing, asked)
                if needed and len(chosen) < until:
                    return None
                continue
            order = _order(stage, left, turns, asked.start_offset)
            if choosing.reward_weighting == "spread":
                order = _drawn(order, stage, until, choosing, asked)
            while len(chosen) < until:
                left = [group for group in stage if group not in chosen]
                if not left:
                    break
                chosen.append(_next(left, chosen, order))
            if needed and len(chosen) < until:
                return None
        found += [group.ref for group in chosen]
    return found


def _kept(
    ready: list[KnownGroup], state: SamplerState, choosing: Choosing, asked: Asked
) -> list[KnownGroup]:
    """Without those that are dropped."""
    found, reference = ready, state.reference(asked.step)
    if choosing.bounds_lag:  # Of the step that is asked for: those beyond it cannot be there.
        found = [group for group in found if all(p.step <= asked.step for p in group.policies)]
    if choosing.max_policy_lag >= 0:
        oldest = reference.step - choosing.max_policy_lag
        found = [group for group in found if all(p.step >= oldest for p in group.policies)]
    if choosing.recent_n_versions is not None:
        steps = range(reference.step + 1)
        versions = sorted({step for _, step in state.published.policies.values()} or steps)
        few = versions[-choosing.recent_n_versions :]
        oldest = few[0] if len(few) == choosing.recent_n_versions else 0
        found = [group for group in found if group.policies[0].step >= oldest]
    if choosing.min_mean_reward is not None:
        found = [group for group in found if np.mean(_returns(group)) >= choosing.min_mean_reward]
    if choosing.max_mean_reward is not None:
        found = [group for group in found if np.mean(_returns(group)) <= choosing.max_mean_reward]
    if asked.accept is not None:
        found = [group for group in found if not group.all_equal]
    return found


def _eligible(kept: list[KnownGroup], state: SamplerState, asked: Asked) -> list[KnownGroup]:
    found = kept
    if asked.grouping == "strict":
        found = [group for group in found if len(group.policies) == 1]
    if asked.policy_version is not None:
        step = state.published.policies[asked.policy_version][1]
        found = [group for group in found if {policy.step for policy in group.policies} == {step}]
    return found


def _as_sealed(groups: list[KnownGroup], start_offset: int) -> list[KnownGroup]:
    found = sorted(groups, key=lambda group: (group.sealed_ts, group.ref))
    first = start_offset % len(found) if found else 0
    return found[first:] + found[:first]


def _order(
    groups: list[KnownGroup], left: list[KnownGroup], turns: dict[Key, int], start_offset: int
) -> list[Key]:
    """The keys of these groups, by all the groups of each that are left."""

    def place(key: Key) -> tuple[int, Age]:
        oldest = min(_age(group) for group in left if group.key == key)
        return max(oldest[0], turns.get(key, -1)), oldest

    keys = sorted({group.key for group in groups}, key=place)
    first = start_offset % len(keys) if keys else 0
    return keys[first:] + keys[:first]


def _drawn(
    order: list[Key], stage: list[KnownGroup], until: int, choosing: Choosing, asked: Asked
) -> list[Key]:
    """Of the first four times as many as are wanted those first whose exponential time, at the rate
    of the spread of what their oldest group earned, is over first."""
    times = {}
    for key in order[: 4 * until]:
        oldest = min((group for group in stage if group.key == key), key=_age)
        text = f"{_salt(choosing, asked)}\x1f{key.environment}\x1f{key.example_id}\x1fspread"
        uniform = (xxhash.xxh3_64_intdigest(text.encode()) + 1) / 2.0**64
        spread = np.std(_returns(oldest))
        times[key] = -math.log(uniform) / spread if spread else math.inf
    return sorted(times, key=lambda key: times[key]) + order[len(times) :]


def _returns(group: KnownGroup) -> list[float]:
    """What each rollout earned, of groups whose rollouts are a row each."""
    earned: list[float] = group.rows.unpack().earned.tolist()
    return earned


def _age(group: KnownGroup) -> Age:
    return group.policies[0].step, group.sealed_ts, group.ref


def _next(left: list[KnownGroup], chosen: list[KnownGroup], order: list[Key]) -> KnownGroup:
    """Of the key that gave fewest so far, and of these of the first in order, the oldest."""
    given = Counter(group.key for group in chosen)
    key = min({group.key for group in left}, key=lambda key: (given[key], order.index(key)))
    return min((group for group in left if group.key == key), key=_age)


def _by_recency(
    stage: list[KnownGroup],
    environments: list[str],
    before: int,
    until: int,
    choosing: Choosing,
    asked: Asked,
) -> list[KnownGroup]:
    """Each is drawn from all that are left, by a walk along their weights."""
    left = sorted(stage, key=lambda group: (group.policies[0].step, group.ref))
    steps = sorted({group.policies[0].step for group in left})
    weights = {}
    for rank, step in enumerate(steps, start=1):
        of_newest = {"linear": rank / len(steps), "exp": 2.0 ** (rank - len(steps))}
        weights[step] = max(1, round(of_newest[choosing.recency] ** choosing.alpha * 2**32))
    found: list[KnownGroup] = []
    while left and len(found) < asked.start_offset + until - before:
        total = sum(weights[group.policies[0].step] for group in left)
        text = "\x1f".join([_salt(choosing, asked), *environments, str(before), str(len(found))])
        point = xxhash.xxh3_128_intdigest(text.encode()) % total
        for group in left:
            point -= weights[group.policies[0].step]
            if point < 0:
                found.append(group)
                left.remove(group)
                break
    first = asked.start_offset if found[asked.start_offset :] else 0
    if not first and found:
        first = asked.start_offset % len(found)
    return (found[first:] + found[:first])[: max(0, until - before)]


def _salt(choosing: Choosing, asked: Asked) -> str:
    seed = choosing.seed if asked.seed is None else asked.seed
    return f"{seed}\x1f{asked.step}\x1f{asked.attempt}"
