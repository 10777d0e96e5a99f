"""A step of a trajectory as a rollout segment. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rollstream.producers.validate import (
    checked_flag,
    checked_uid,
    checked_whole,
)
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.ids import step_rollout_uid
from rollstream.schemas.metadata import ObjectText


class Step(NamedTuple):
    """One step of a trajectory: what the policy saw, and what it answered.

    Attributes:
        prompt_ids: token ids of the whole context that the policy saw.
        response_ids: token ids that it sampled; a step has a token in one of them at least.
        reward: that this step earned; the trajectory's return is their sum. None: it has none of
            its own.
        trajectory_uid: unique within its prompt; with it and ``step_index`` a retry is harmless.
            ``rollstream.schemas.ids.step_rollout_uid`` makes the ``rollout_uid`` of both uids.
        prompt_uid: of the prompt whose trajectories make one group.
        step_index: from 0, without gaps; steps may come in any order.
        policy_version: of the weights that sampled, as its trainer published it; or, a number,
            their ``weight_step``.
        weight_step: optimizer steps behind them; −1: not known, and no bound on lag holds. None: as
            the trainer announced ``policy_version`` (``RolloutProducer.policy``).
        is_last: whether the trajectory ends with it.
        n_rollouts: trajectories of this prompt, the same in each of its steps that gives it; with
            the first one of the prompt, and with each where several writers take its steps. None:
            as before, else the environment's ``target_group_size``.
        logprobs: of ``response_ids``, under the policy that sampled.
        metadata: whatever JSON can hold; or an ``ObjectText`` of it.
        policy_epoch: counts the resumes of the policy's trainer; None: as announced. It must be
            given where two epochs have this ``weight_step``, and the version was not announced.
        lineage: policies are compared only within one; None: that of the only model in training.
        example_id: the problem; empty: ``prompt_uid``. The same in all steps of a prompt.
        awaits_score: if this step ends its trajectory and has no reward, its prompt waits for a
            score of it (``ScoreProducer``).
    """

    prompt_ids: Any
    response_ids: Any
    reward: float | None
    trajectory_uid: str
    prompt_uid: str
    step_index: int
    policy_version: str | int
    weight_step: int | None = None
    is_last: bool = False
    n_rollouts: int | None = None
    logprobs: Any = None
    metadata: Mapping[str, Any] | ObjectText | None = None
    policy_epoch: int | None = None
    lineage: str | None = None
    example_id: str = ""
    awaits_score: bool = False


# A segment's field is a step's by another name.
_NAMES = {
    "prompt_tokens": "prompt_ids",
    "output_tokens": "response_ids",
    "rollout_uid": "trajectory_uid",
    "group_uid": "prompt_uid",
    "group_size": "n_rollouts",
    "segment_idx": "step_index",
    "is_last_segment": "is_last",
}
_NAMED = re.compile(rf"\b({'|'.join(_NAMES)})\b")


def checked_steps(steps: Any) -> list[Step]:
    """The steps, once what their order and groups depend on was checked.

    Raises:
        InvalidRollout: names the index, field, value and remedy.
    """
    if isinstance(steps, Step) or not isinstance(steps, Iterable):
        raise InvalidRollout(f"steps is {steps!r:.200}; give a sequence of Steps")
    return [_checked(index, step) for index, step in enumerate(steps)]


def _checked(index: int, step: Any) -> Step:
    if not isinstance(step, Step):
        raise InvalidRollout(f"steps[{index}] is {step!r:.200}; give a Step")
    try:
        size = step.n_rollouts
        if size is not None:
            size = checked_whole("n_rollouts", size)
            if size < 1:
                raise InvalidRollout(f"n_rollouts is {size}; a prompt has at least 1")
        return step._replace(
            trajectory_uid=checked_uid("trajectory_uid", step.trajectory_uid),
            prompt_uid=checked_uid("prompt_uid", step.prompt_uid),
            step_index=checked_whole("step_index", step.step_index),
            is_last=checked_flag("is_last", step.is_last),
            awaits_score=checked_flag("awaits_score", step.awaits_score),
            n_rollouts=size,
        )
    except InvalidRollout as wrong:
        raise at_index(wrong, index) from None


def segment_arguments(step: Step, environment: str, size: int) -> dict[str, Any]:
    """``RolloutArguments`` of the step; ``size`` of its group, 0: the environment's."""
    return {
        "environment": environment,
        "example_id": step.example_id or step.prompt_uid,
        "group_uid": step.prompt_uid,
        "group_size": size,
        "rollout_uid": step_rollout_uid(step.prompt_uid, step.trajectory_uid),
        "segment_idx": step.step_index,
        "is_last_segment": step.is_last,
        "policy_version": step.policy_version,
        "weight_step": step.weight_step,
        "policy_epoch": step.policy_epoch,
        "lineage": step.lineage,
        "prompt_tokens": step.prompt_ids,
        "output_tokens": step.response_ids,
        "logprobs": step.logprobs,
        "reward": step.reward,
        "metadata": step.metadata or {},
    }


def at_index(wrong: InvalidRollout, index: int) -> InvalidRollout:
    """The same error, in a step's words, of the step at this index."""
    said = _NAMED.sub(lambda found: _NAMES[found[0]], str(wrong))
    wrong.args = (f"steps[{index}]: {said}",)
    return wrong
