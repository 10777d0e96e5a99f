"""What the page of a rollout shows, as an object for JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rollstream.console.rollout_text import rollout_head, rollout_object
from rollstream.console.tokens import Decode
from rollstream.sampler.history import FoundRollout
from rollstream.schemas.records import RolloutRecord

TOKENS_MAX = 20_000  # Of a segment, half of them from its end: a browser draws each.
_PIECE_MAX = 4  # Tokens that make one character, at most.
_BROKEN = "\ufffd"  # What a decoder gives for a part of a character.


def rollout_page(found: FoundRollout, decode: Decode | None) -> dict[str, Any]:
    """The rollout with each token's text, log-probability and mask; long outputs are cut, and the
    object says by how much."""
    whole = rollout_object(found, decode)
    for drawn, segment in zip(whole["segments"], found.segments, strict=True):
        for name in ("prompt_tokens", "output_tokens", "output_text", "masked"):
            drawn.pop(name, None)
        if decode is None:
            drawn["prompt_text"] = " ".join(map(str, _ends(segment.prompt_tokens.tolist())[0]))
        drawn.update(_tokens(segment, decode))
    return {**whole, "head": rollout_head(found)}


def _tokens(segment: RolloutRecord, decode: Decode | None) -> dict[str, Any]:
    tokens, cut = _ends(segment.output_tokens.tolist())
    pieces = [f"{one} " for one in tokens] if decode is None else _pieces(tokens, decode)
    logprobs = None
    if segment.logprobs is not None:
        logprobs = _ends(np.round(segment.logprobs.astype(np.float64), 3).tolist())[0]
    mask = None if segment.loss_mask is None else _ends(segment.loss_mask.tolist())[0]
    return {"tokens": pieces, "cut": cut, "logprobs": logprobs, "mask": mask}


def _ends(values: list[Any]) -> tuple[list[Any], int]:
    """The values, or their first and last ones; and how many were left out between them."""
    half = TOKENS_MAX // 2
    cut = max(0, len(values) - TOKENS_MAX)
    return (values[:half] + values[-half:] if cut else values), cut


def _pieces(tokens: Sequence[int], decode: Decode) -> list[str]:
    """The text of each token; of several that make one character, the last one has it."""
    pieces, pending = [], list[int]()
    for token in tokens:
        pending.append(token)
        text = decode(pending)
        if text.endswith(_BROKEN) and len(pending) < _PIECE_MAX:
            pieces.append("")
        else:
            pieces.append(text)
            pending = []
    return pieces
