"""Why groups are not served, and what to do about each reason. Pure."""

from __future__ import annotations

from typing import assert_never

from rollstream.schemas.reasons import DropReason
from rollstream.streams.folds.sampler.state import SamplerState
from rollstream.streams.folds.waiting import Waits


def why_waiting(reason: Waits, state: SamplerState) -> str:
    """Why a group that is sealed cannot be served as it is, and what serves such groups."""
    config = state.config
    match reason:
        case "reward":
            return "a member has no reward yet; today only publish(reward=…) gives one"
        case "weight_step":
            return (
                f"max_policy_lag is {config.max_policy_lag} and a member names no weight_step; "
                "workers must publish(weight_step=N) with the N that publish_policy returned as "
                f"step, or leave samplers.{state.name}.max_policy_lag out"
            )
        case "lineage":
            return (
                f"max_policy_lag is {config.max_policy_lag} and the group is of another lineage "
                f"than {config.lineage!r}, the sampler's; workers must publish(lineage="
                f"{config.lineage!r}), or samplers.{state.name}.lineage must name theirs"
            )
        case "eval":
            return (
                "split is not 'train', so it is never trained on; publish(split='train') is what "
                "trainers get"
            )
        case _:
            assert_never(reason)


def why_dropped(reason: DropReason, state: SamplerState) -> str:
    """Why a group will never be served, and what keeps the next ones from the same end."""
    config = state.config
    match reason:
        case DropReason.OFF_BRANCH:
            return (
                "a resume went back to before the weights that they name; workers must publish("
                f"policy_epoch={state.policy_epoch}), as publish_policy returned it"
            )
        case DropReason.STALE:
            return (
                f"their weights were more than max_policy_lag = {config.max_policy_lag} steps "
                "behind; workers must load newer weights and publish their weight_step, or raise "
                f"samplers.{state.name}.max_policy_lag"
            )
        case DropReason.CAPACITY:
            return (
                f"more than capacity_groups = {config.capacity_groups} were kept, and they were "
                f"the oldest; raise samplers.{state.name}.capacity_groups"
            )
        case DropReason.FILTERED:
            return (
                "their rewards were all equal where accept='nonzero_std' was asked for, or "
                "replace() put others in their places; wait for groups whose rewards differ, or "
                "ask without accept"
            )
        case _:
            assert_never(reason)
