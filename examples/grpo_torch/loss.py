"""GRPO's loss over packs, whose examples do not see each other."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from transformers import LlamaForCausalLM

from examples.grpo_torch.settings import CLIP, ENTROPY_BONUS


def block_causal(segment_ids: torch.Tensor) -> torch.Tensor:
    """What each position attends to: itself and what stands before it in its own example; bool
    [K, 1, S, S]. Padding attends to padding, since a row of nothing would be NaN."""
    same = segment_ids[:, :, None] == segment_ids[:, None, :]
    return same.tril().unsqueeze(1)


def grpo_loss(
    model: LlamaForCausalLM, packs: Mapping[str, torch.Tensor], tokens: int
) -> torch.Tensor:
    """The clipped surrogate with clip-higher, no KL term and a bonus for entropy.

    Args:
        packs: the arrays of ``Packs`` as tensors, on the model's device.
        tokens: over which the whole batch's loss is a mean, those of all ranks; so what each rank
            returns adds up, and every token counts the same.
    """
    logits = model(
        input_ids=packs["tokens"].long(),
        position_ids=packs["position_ids"].long(),
        attention_mask=block_causal(packs["segment_ids"]),
        use_cache=False,
    ).logits
    # Position t says what comes at t + 1. The first token of an example is never trained on, so
    # that no example is judged by what the one before it ended with.
    log_softmax = logits[:, :-1].float().log_softmax(-1)
    entropy = -(log_softmax.exp() * log_softmax).sum(-1)
    chosen = packs["tokens"][:, 1:, None].long()
    logprobs = log_softmax.gather(-1, chosen).squeeze(-1)
    mask, advantages, sampled = (
        packs[name][:, 1:] for name in ("loss_mask", "advantages", "generator_log_probs")
    )
    ratio = (logprobs - sampled).exp()
    clipped = ratio.clamp(1 - CLIP[0], 1 + CLIP[1])
    gain = torch.minimum(ratio * advantages, clipped * advantages) + ENTROPY_BONUS * entropy
    return -(gain * mask).sum() / tokens
