"""``grpo_inputs``: examples as the inputs of ``GRPOTrainer``'s loss."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollstream.sampler import Batch, InvalidRequest
from rollstream.sampler.arguments import number
from rollstream.sampler.batch.tensors import torch_tensors
from rollstream.sampler.training.examples.examples import Examples
from rollstream.sampler.training.examples.prompt_response import PromptResponse


def grpo_inputs(
    batch: Batch, examples: Examples, *, pad_id: int, ratio_max: float | None = None
) -> dict[str, Any]:
    """What TRL's ``GRPOTrainer`` computes its loss from, by TRL's names, as its own
    ``_generate_and_score_completions`` returns it; P and C are the longest prompt and completion.

    - ``prompt_ids``, ``prompt_mask``: int64 [n, P], padded on the left.
    - ``completion_ids``, ``completion_mask``: int64 [n, C], padded on the right.
    - ``tool_mask``: int64 [n, C], 1 where the loss counts; only where it leaves out tokens.
    - ``advantages``: float32 [n].
    - ``num_items_in_batch``: how many tokens the loss counts, in these examples. TRL needs the sum
      over all micro-batches of an optimizer step and all ranks, as ``RolloutTrainer`` gives it.
    - ``old_per_token_logps``: float32 [n, C]: ``old_logprobs`` where the batch was asked for
      them, else what the generator published.
    - ``ref_per_token_logps``: float32 [n, C], where it was asked for ``ref_logprobs``.
    - ``sampling_per_token_logps``: float32 [n, C], the generator's, and
      ``importance_sampling_ratio``, by which ``use_vllm=True`` weights tokens: with ``ratio_max``
      alone.

    Args:
        batch: that the examples are of.
        examples: with the advantages to train on: ``Examples.of(batch, "grpo")``, say.
        pad_id: the tokenizer's ``pad_token_id``; where that is None, any token's.
        ratio_max: truncates the ratio of ``old_logprobs`` to the generator's log-probs, as
            ``vllm_importance_sampling_mode="token_truncate"`` does.

    Raises:
        InvalidRequest: a token that the loss counts has no log-prob; ``pad_id`` is no token,
            ``ratio_max`` no number above 0, or the examples are of another batch.
        ArrayMissing: ``ratio_max``, and the batch was not asked for ``old_logprobs``.
        MissingExtra: there is no PyTorch here.
    """
    if ratio_max is not None and number("ratio_max", ratio_max) <= 0:
        raise InvalidRequest(f"ratio_max is {ratio_max}; give a number above 0, or None")
    shaped = PromptResponse.of(batch, examples, pad_id)
    width = shaped.prompt_width
    arrays = {
        "prompt_ids": shaped.tokens[:, :width],
        "prompt_mask": shaped.attention_mask[:, :width],
        "completion_ids": shaped.tokens[:, width:],
        "completion_mask": shaped.attention_mask[:, width:],
        # Tokens that the loss counts have the same in all of an example, and the others 0.
        "advantages": shaped.advantages.max(axis=1, initial=0)
        + shaped.advantages.min(axis=1, initial=0),
        "num_items_in_batch": np.asarray(shaped.loss_mask.sum()),
    }
    if not np.array_equal(shaped.loss_mask, arrays["completion_mask"]):
        arrays["tool_mask"] = shaped.loss_mask
    again = "old_logprobs" in shaped.token_arrays or ratio_max is not None
    arrays["old_per_token_logps"] = shaped.log_probs(
        "old_logprobs" if again else "generator_log_probs"
    )
    if "ref_logprobs" in shaped.token_arrays:
        arrays["ref_per_token_logps"] = shaped.log_probs("ref_logprobs")
    if ratio_max is not None:
        sampling = shaped.log_probs("generator_log_probs")
        ratio = np.exp(arrays["old_per_token_logps"] - sampling)
        arrays["importance_sampling_ratio"] = np.minimum(ratio, np.float32(ratio_max))
        arrays["sampling_per_token_logps"] = sampling
    return torch_tensors(arrays)
