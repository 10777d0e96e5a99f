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


def token_logprobs(
    model: LlamaForCausalLM, packs: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The log-prob of each token but a pack's first, and the entropy of what it was chosen from;
    float32 [K, S - 1] each.

    Position t says what comes at t + 1: the first token of an example is judged by the end of the
    one before it, which is of no use and of no harm, since it is part of a prompt.
    """
    logits = model(
        input_ids=packs["tokens"].long(),
        position_ids=packs["position_ids"].long(),
        attention_mask=block_causal(packs["segment_ids"]),
        use_cache=False,
    ).logits
    log_softmax = logits[:, :-1].float().log_softmax(-1)
    chosen = packs["tokens"][:, 1:, None].long()
    return log_softmax.gather(-1, chosen).squeeze(-1), -(log_softmax.exp() * log_softmax).sum(-1)


def grpo_loss(
    model: LlamaForCausalLM, packs: Mapping[str, torch.Tensor], tokens: int
) -> torch.Tensor:
    """The clipped surrogate with clip-higher, without a KL term, and a bonus for entropy.

    Args:
        packs: the arrays of ``Packs`` as tensors, on the model's device.
        tokens: over which the whole batch's loss is a mean, those of all ranks; so what the ranks
            return adds up, and every token counts the same. Where none counts the loss is 0.
    """
    logprobs, entropy = token_logprobs(model, packs)
    mask, advantages, sampled = (
        packs[name][:, 1:] for name in ("loss_mask", "advantages", "generator_log_probs")
    )
    ratio = (logprobs - sampled).exp()
    clipped = ratio.clamp(1 - CLIP[0], 1 + CLIP[1])
    gain = torch.minimum(ratio * advantages, clipped * advantages) + ENTROPY_BONUS * entropy
    return -(gain * mask).sum() / max(tokens, 1)
