"""``proto_arguments``: examples as what verl's ``DataProto.from_dict`` takes."""

from __future__ import annotations

from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler import Batch
from rollstream.sampler.batch.tensors import torch_tensors
from rollstream.sampler.training.examples.examples import Examples
from rollstream.sampler.training.examples.prompt_response import PromptResponse


class ProtoArguments(TypedDict):
    """Arguments of ``DataProto.from_dict``."""

    tensors: dict[str, Any]
    non_tensors: dict[str, NDArray[Any]]
    meta_info: dict[str, Any]


def proto_arguments(batch: Batch, examples: Examples, *, pad_id: int) -> ProtoArguments:
    """What makes a ``DataProto`` as verl's trainer has it after advantages were computed:
    ``DataProto.from_dict(**proto_arguments(batch, examples, pad_id=0))``. P and R are the longest
    prompt and response. Of the tensors, by verl's names:

    - ``prompts``: int64 [n, P], padded on the left. ``responses``: int64 [n, R], padded on the
      right. ``input_ids``: int64 [n, P + R], both.
    - ``attention_mask`` and ``position_ids``: int64 [n, P + R].
    - ``response_mask``: int64 [n, R]; 1 at the tokens that the loss counts.
    - ``rollout_log_probs``: float32 [n, R], the generator's. ``old_log_probs``: ``old_logprobs``
      where the batch was asked for them, else the same, as in verl's bypass mode.
      ``ref_log_prob``, where it was asked for ``ref_logprobs``.
    - ``token_level_scores`` and ``token_level_rewards``: float32 [n, R]; the return of each
      example's trajectory, at the last token of its response.
    - ``advantages`` and ``returns``: float32 [n, R], the same, as verl has them without a critic.

    And of the arrays of objects: ``uid``, the group's id, and ``data_source``, the environment.
    ``meta_info`` has ``global_steps``, the step.

    Args:
        batch: that the examples are of.
        examples: with the advantages to train on: ``Examples.of(batch, "grpo")``, say.
        pad_id: the tokenizer's ``pad_token_id``; where that is None, any token's.

    Raises:
        InvalidRequest: a token that the loss counts has no log-prob; ``pad_id`` is no token,
            or the examples are of another batch.
        MissingExtra: there is no PyTorch here.
    """
    shaped = PromptResponse.of(batch, examples, pad_id)
    width, mask = shaped.prompt_width, shaped.attention_mask
    sampled = shaped.log_probs("generator_log_probs")
    arrays = {
        "prompts": shaped.tokens[:, :width],
        "responses": shaped.tokens[:, width:],
        "input_ids": shaped.tokens,
        "attention_mask": mask,
        "position_ids": np.maximum(mask.cumsum(axis=1) - 1, 0),
        "response_mask": shaped.loss_mask,
        "rollout_log_probs": sampled,
        "old_log_probs": sampled,
        "advantages": shaped.advantages,
        "returns": shaped.advantages,
    }
    if "old_logprobs" in shaped.token_arrays:
        arrays["old_log_probs"] = shaped.log_probs("old_logprobs")
    if "ref_logprobs" in shaped.token_arrays:
        arrays["ref_log_prob"] = shaped.log_probs("ref_logprobs")
    scores = np.zeros(shaped.loss_mask.shape, np.float32)
    last = mask[:, width:].sum(axis=1) - 1
    scores[np.arange(len(examples)), last] = batch.trajectory_returns[examples.trajectories]
    arrays["token_level_scores"] = arrays["token_level_rewards"] = scores
    groups = [batch.sampled.group_ids[slot] for slot in batch.slots]
    rows = examples.rows
    return {
        "tensors": torch_tensors(arrays),
        "non_tensors": {
            "uid": np.array(groups, object)[batch.group_index[rows]],
            "data_source": np.array(batch.environments, object)[rows],
        },
        "meta_info": {"global_steps": batch.step},
    }
