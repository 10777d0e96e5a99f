"""A Llama of some 100,000 parameters with random weights, and its files."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from examples.grpo_torch.words import END, PAD, VOCABULARY_SIZE


def device_of(rank: int = 0) -> torch.device:
    """A GPU where there is one; ranks share those that there are."""
    count = torch.cuda.device_count()
    return torch.device("cuda", rank % count) if count else torch.device("cpu")


def new_model(seed: int) -> LlamaForCausalLM:
    """The same random weights for the same seed."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY_SIZE,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=64,
            # Reading a letter and writing it are then one lesson.
            tie_word_embeddings=True,
            initializer_range=0.1,
            pad_token_id=PAD,
            bos_token_id=None,
            eos_token_id=END,
            attn_implementation="sdpa",
        )
    )


def save_weights(model: LlamaForCausalLM, path: Path) -> Path:
    """Writes a safetensors file, whole or not at all."""
    unfinished = path.with_suffix(".unfinished")
    save_file({name: p.detach().cpu() for name, p in model.named_parameters()}, unfinished)
    return unfinished.replace(path)


def load_weights(model: LlamaForCausalLM, path: str) -> None:
    """Reads it into the model, in place."""
    loaded = load_file(path)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(loaded[name])
