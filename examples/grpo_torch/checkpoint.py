"""What a trainer resumes with: weights, the optimizer's state and the step; one file."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaForCausalLM


def save_checkpoint(
    path: Path, step: int, model: LlamaForCausalLM, optimizer: torch.optim.Optimizer
) -> None:
    """After ``step``; whole or not at all."""
    unfinished = path.with_suffix(".unfinished")
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, unfinished)
    unfinished.replace(path)


def load_checkpoint(
    path: Path, model: LlamaForCausalLM, optimizer: torch.optim.Optimizer
) -> int | None:
    """Reads it into both; its step; None: there is none."""
    if not path.exists():
        return None
    state = torch.load(path, map_location=model.device, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])
