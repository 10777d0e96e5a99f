"""Why groups are not served, and what to do about each reason. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import assert_never

from rollstream.folds.group.eligible import Waits
from rollstream.schemas.choosing import Choosing
from rollstream.schemas.reasons import DropReason


def why_waiting(reason: Waits, name: str, choosing: Choosing) -> str:
    """Why the sampler ``name`` cannot serve sealed groups as they are, and what serves them."""
    limits = _step_limits(choosing)
    by = f" by {choosing.scorer!r}" if choosing.scorer else ""
    match reason:
        case "reward":
            return (
                f"a member has no reward and no score{by}; see that its scorer runs "
                "(ScoreProducer), or name the reward when publishing: publish(reward=R)"
            )
        case "lineage":
            return (
                f"{_all_of(limits)} and the group is of another lineage "
                f"than {choosing.lineage!r}, the sampler's; workers must publish(lineage="
                f"{choosing.lineage!r}), or samplers.{name}.lineage must name theirs"
            )
        case "eval":
            return "they are never served for training; publish(split='train') is what trainers get"
        case _:
            assert_never(reason)


def describe_waiting(
    waiting: Mapping[Waits, int], name: str, choosing: Choosing, behind: Sequence[str] = ()
) -> list[str]:
    """A sentence for each reason: how many groups wait, why, and what serves them; groups of split
    ``eval``, which wait for nothing, last.

    Args:
        behind: environments of which not all scores are read for now.
    """
    sentences = [
        f"{count:,} wait: "
        + (_unread(behind) if behind and why == "reward" else why_waiting(why, name, choosing))
        for why, count in sorted(waiting.items())
        if why != "eval"
    ]
    count = waiting.get("eval", 0)
    if count:
        sentences.append(f"{count:,} eval group{'s'[: count > 1]}, never served for training")
    return sentences


def _unread(behind: Sequence[str]) -> str:
    return (
        f"a member has no reward and no score that was read, and scores of {' and '.join(behind)} "
        "are read no further for now: too many wait for rollouts that are not sealed; see that "
        "sealers run, and score sealed groups by their group_id (docs/guides/late_rewards.md)"
    )


def why_dropped(reason: DropReason, name: str, choosing: Choosing, policy_epoch: int) -> str:
    """Why the sampler ``name`` will never serve groups, and what keeps the next ones from the same.

    Args:
        policy_epoch: of the policies that are published now.
    """
    # Where they were dropped by a limit that is no longer set, that is max_policy_lag.
    limits = _step_limits(choosing) or {"max_policy_lag": choosing.max_policy_lag}
    match reason:
        case DropReason.OFF_BRANCH:
            return (
                "a resume went back to before the weights that they name; workers must publish("
                f"policy=producer.policy()), or its policy_epoch, which is {policy_epoch} now. If "
                f"another trainer made them, {_begin_anew(choosing)}"
            )
        case DropReason.STALE:
            return (
                f"their weights were further behind than {_either(limits)} allows; workers must "
                "ask for producer.policy() before each group and sample with it, or raise "
                f"samplers.{name}.{' or '.join(limits)}"
            )
        case DropReason.NO_WEIGHT_STEP:
            return (
                "a member names no weight_step, so that its age is not known, and "
                f"{_all_of(limits)}; workers must publish(policy=…), or publish(weight_step=N) "
                f"with its step; {_without(name, limits)} serves weights of any age"
            )
        case DropReason.TOO_OLD:
            return (
                "fewer than min_group_size of their rollouts were made within the last "
                f"{choosing.max_rollout_timestamp_delay:g} s; see that sealers and trainer keep "
                "up and workers' clocks (created_ts) are right, or raise "
                f"samplers.{name}.max_rollout_timestamp_delay"
            )
        case DropReason.CAPACITY:
            counts = _capacities(choosing)
            return (
                f"more than {_either(counts)} were kept, and they were the oldest; raise "
                f"samplers.{name}.{' or '.join(counts)}, or max_queue_size of a TrajectoryPool"
            )
        case DropReason.FILTERED:
            return (
                "their rewards were all equal where accept='nonzero_std' was asked for, or "
                f"replace() put others into their slots{_or_filtered(name, choosing)}; wait for "
                "groups whose rewards differ, or ask without accept"
            )
        case DropReason.UNREADABLE:
            return (
                "their files are missing or damaged; look at the sampler's log for the paths, and "
                "whether store.root is what sealers write to and whole"
            )
        case DropReason.UNSCORED:
            return (
                f"a member had no reward, and no score came within score_timeout_s = "
                f"{choosing.score_timeout_s:g} s of the seal; see that the scorer runs and keeps "
                f"up, or raise samplers.{name}.score_timeout_s"
            )
        case DropReason.AHEAD:
            return _why_ahead(name, choosing, limits)
        case DropReason.OTHER_LINEAGE:
            return (
                f"they are of another lineage than {choosing.lineage!r}, the pool's; writers must "
                f"publish with producer.policy(), or samplers.{name}.lineage must name theirs"
            )
        case DropReason.BY_TRAINER:
            return "the trainer itself dropped them, with drop(groups, reason) or purge()"
        case _:
            assert_never(reason)


def _why_ahead(name: str, choosing: Choosing, limits: Mapping[str, int]) -> str:
    return (
        "they name weights that the trainer cannot have made yet, so that their age is not known, "
        f"and {_all_of(limits)}; workers must publish(policy=producer.policy()), or weight_step as "
        "the trainer counts: batch n turns weights n into n + 1. If another trainer made them, "
        f"{_begin_anew(choosing)}, or with {_without(name, limits)}, which serves any"
    )


def _begin_anew(choosing: Choosing) -> str:
    return f"both are of lineage {choosing.lineage!r}: begin anew with a sampler that has its own"


def given_up_without_bound(samplers: Mapping[str, Choosing]) -> str:
    """What those of the samplers give up, in words, whose settings bound no weights' age; empty
    where all do, or where a trajectory pool needs none."""
    names = sorted(
        name
        for name, choosing in samplers.items()
        # A pool's reader weighs old steps.
        if not choosing.bounds_lag and choosing.order != "ready"
    )
    if not names:
        return ""
    limits = [
        f"samplers.{name}.max_policy_lag is {samplers[name].max_policy_lag}" for name in names
    ]
    return (
        f"{' and '.join(limits)}, no limit: groups of any age, of unknown weights and of any "
        "lineage are trained on, and where workers are faster than the trainer, lag grows for as "
        "long as the run lasts"
    )


def _or_filtered(name: str, choosing: Choosing) -> str:
    """The settings that keep groups out by what they earned, as TOML; empty: none is set."""
    keys = ("min_mean_reward", "max_mean_reward", "exclude_flags", "require_flags")
    values = {key: getattr(choosing, key) for key in keys}
    found = [f"{key} = {json.dumps(one)}" for key, one in values.items() if one not in (None, ())]
    return f", or samplers.{name} keeps them out by {' or '.join(found)}" if found else ""


def _step_limits(choosing: Choosing) -> dict[str, int]:
    """The limits in steps that are set."""
    keys = ("max_policy_lag", "max_rollout_step_delay", "recent_n_versions")
    values = {key: getattr(choosing, key) for key in keys}
    return {key: one for key, one in values.items() if one is not None and one >= 0}


def _without(name: str, limits: Mapping[str, int]) -> str:
    """The settings that limit no weights' age."""
    return " and ".join(
        "no recent_n_versions" if key == "recent_n_versions" else f"samplers.{name}.{key} = -1"
        for key in limits
    )


def _all_of(limits: Mapping[str, int]) -> str:
    return " and ".join(f"{key} is {value}" for key, value in limits.items())


def _capacities(choosing: Choosing) -> dict[str, int]:
    """Those of the two bounds that can be exceeded: all environments together have ``capacity``
    times their number."""
    every, number = choosing.capacity_groups, len(choosing.environments)
    if choosing.capacity is None or (number == 1 and choosing.capacity > every):
        return {"capacity_groups": every}
    if choosing.capacity * number <= every:
        return {"capacity": choosing.capacity}
    return {"capacity_groups": every, "capacity": choosing.capacity}


def _either(limits: Mapping[str, int]) -> str:
    return " or ".join(f"{key} = {value}" for key, value in limits.items())
