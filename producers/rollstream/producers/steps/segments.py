"""A step of a trajectory as a rollout segment. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rollstream.producers.rollouts.fields import checked, checked_flag, checked_uid
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.metadata import ObjectText
from rollstream.schemas.rules import whole_number


class Step(NamedTuple):
    """Holds one step of a trajectory: the context that the policy saw, and its answer.

    A step counts once, however often it is submitted: its two uids and ``step_index`` name it. A
    batch has it as a row with ``rollout_uid``
    ``rollstream.schemas.ids.step_rollout_uid(prompt_uid, trajectory_uid)``.

    Attributes:
        prompt_ids: int32 [prompt]; token ids of the whole context that the policy saw.
        response_ids: int32 [n]; token ids that it sampled. A step has at least one token in all.
        reward: what this step earned. A trajectory's return is the sum of its steps' rewards. None:
            the step has no reward of its own.
        trajectory_uid: the name of the trajectory, unique within its prompt.
        prompt_uid: the name of the prompt. Its trajectories make one group. Use a new one each time
            a problem is sampled.
        step_index: counts the trajectory's steps from 0. They may come in any order.
        policy_version: the policy that sampled, as its trainer published it. A number is its
            ``weight_step``.
        weight_step: optimizer steps behind its weights. None: as the trainer announced for
            ``policy_version``. -1: not known. A pool never marks such a step off-policy, and a
            sampler with a limit of lag drops it.
        is_last: whether the trajectory ends with this step.
        n_rollouts: trajectories of this prompt. Give it in each step if several writers take the
            prompt's steps. None: as an earlier step of the prompt said. If no step says it, the
            prompt is finished when all its trajectories have ended and none began for
            ``prompt_idle_s``.
        logprobs: float32 [n]; natural logarithms of the probabilities of ``response_ids`` under the
            policy that sampled.
        metadata: anything that JSON can hold; or an ``ObjectText`` of it.
        policy_epoch: the ``epoch`` of the policy. None: as the trainer announced. Needed if the
            version was not announced and weights of two epochs have this ``weight_step``.
        lineage: the model. Policies are compared only within one. None: the only one in training.
        example_id: the problem, the same in all steps of a prompt. Empty: ``prompt_uid``.
        awaits_score: whether the prompt waits for a score (``ScoreProducer``) if this step ends its
            trajectory without a reward.
        loss_mask: bool [n]; which of ``response_ids`` to train on. None: all of them.
        token_arrays: arrays [n, …] of your own, by name.
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
    loss_mask: Any = None
    token_arrays: Mapping[str, Any] | None = None


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


def checked_step(step: Step) -> Step:
    """The step, once what its order and its group depend on was checked.

    Raises:
        InvalidRollout: names field, value and remedy.
    """
    size = step.n_rollouts
    if size is not None and (size := whole_number("n_rollouts", size)) < 1:
        raise InvalidRollout("n_rollouts", size, "a prompt has at least 1")
    return step._replace(
        trajectory_uid=checked_uid("trajectory_uid", step.trajectory_uid),
        prompt_uid=checked_uid("prompt_uid", step.prompt_uid),
        step_index=checked("segment_idx", step.step_index),
        is_last=checked_flag("is_last", step.is_last),
        awaits_score=checked_flag("awaits_score", step.awaits_score),
        n_rollouts=size,
        example_id=step.example_id and checked("example_id", step.example_id),
    )


def at_index(wrong: InvalidRollout, index: int) -> InvalidRollout:
    """The same error, in a step's words, of the step at this index."""
    name, bracket, at = wrong.field.partition("[")
    wrong.field = _NAMES.get(name, name) + bracket + at
    for field, of_step in _NAMES.items():
        wrong.remedy = wrong.remedy.replace(field, of_step)
    wrong.index = index
    return wrong
