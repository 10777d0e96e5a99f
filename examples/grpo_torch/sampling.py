"""Answers, sampled with ``model.generate``, with the log-prob of every token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import GenerationConfig, LlamaForCausalLM

from examples.grpo_torch.words import END, MAX_ANSWER_TOKENS, PAD

# The policy itself: a loss computed from these log-probs is wrong under any other distribution.
_AS_IT_IS = GenerationConfig(
    do_sample=True,
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    max_new_tokens=MAX_ANSWER_TOKENS,
    pad_token_id=PAD,
    eos_token_id=END,
    return_dict_in_generate=True,
    output_scores=True,
)


class Answer(NamedTuple):
    """int32 [k], up to and with the end, and their log-probs, float32 [k]."""

    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    stop_reason: str


def sample(
    model: LlamaForCausalLM, prompts: Sequence[NDArray[np.int32]], answers: int
) -> list[list[Answer]]:
    """So many answers to each prompt; the prompts are of one length."""
    device = model.device
    input_ids = torch.from_numpy(np.stack(prompts)).long().repeat_interleave(answers, 0).to(device)
    with torch.no_grad():
        out = model.generate(
            input_ids, attention_mask=torch.ones_like(input_ids), generation_config=_AS_IT_IS
        )
        logprobs = model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
    written = out.sequences[:, input_ids.shape[1] :].cpu().numpy().astype(np.int32)
    ended = written == END
    lengths = np.where(ended.any(axis=1), ended.argmax(axis=1) + 1, written.shape[1])
    rows = zip(written, logprobs.float().cpu().numpy(), lengths, ended.any(axis=1), strict=True)
    flat = [Answer(t[:n], p[:n], "stop" if e else "length") for t, p, n, e in rows]
    return [flat[i : i + answers] for i in range(0, len(flat), answers)]
