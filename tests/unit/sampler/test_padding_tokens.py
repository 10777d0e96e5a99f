"""Which token padding may have: the same for packs, rectangles and what trainers take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from harness.batches import batch_of
from harness.groups import GroupSpec
from rollstream.sampler import Batch, Examples, InvalidRequest, Packs, plan_packs
from rollstream.sampler.training.examples.prompt_response import PromptResponse


def packs(batch: Batch, pad_id: Any) -> Any:
    examples = Examples.of(batch)
    return Packs.of(examples, plan_packs(examples.lengths, 64), pad_id=pad_id)


def rectangles(batch: Batch, pad_id: Any) -> Any:
    return batch.padded(64, pad_id)


def prompts_and_responses(batch: Batch, pad_id: Any) -> Any:
    """What ``grpo_inputs`` and ``proto_arguments`` are made of."""
    return PromptResponse.of(batch, Examples.of(batch), pad_id)


@pytest.mark.proves("F20")
@pytest.mark.parametrize("shaped", [packs, rectangles, prompts_and_responses])
@pytest.mark.parametrize(
    ("pad_id", "message"),
    [
        (None, "pad_id is None, as tokenizer.pad_token_id is .*give .*tokenizer.eos_token_id"),
        (2**40, "pad_id is 1099511627776; give the id of a token"),
        (-(2**31) - 1, "pad_id is -2147483649; give the id of a token"),
        ("x", "pad_id is 'x'; give a whole number"),
        (0.5, r"pad_id is 0\.5; give a whole number"),
    ],
)
def test_what_is_no_token_is_refused(
    shaped: Callable[[Batch, Any], Any], pad_id: Any, message: str
) -> None:
    batch = batch_of()
    with pytest.raises(InvalidRequest, match=message):
        shaped(batch, pad_id)
    assert shaped(batch, np.int64(2**31 - 1)) is not None


@pytest.mark.proves("F20")
def test_examples_of_another_batch_are_not_shaped_with_the_prompts_of_this_one() -> None:
    batch = batch_of([GroupSpec(rewards=(0.0, 1.0), output=4)])
    longer = batch_of([GroupSpec(rewards=(0.0, 1.0), output=5)])
    more = batch_of([GroupSpec(rewards=(0.0, 1.0, 2.0), output=4)])
    for other in (longer, more):
        with pytest.raises(
            InvalidRequest, match=r"were not made of Batch\(.*give the batch that th"
        ):
            PromptResponse.of(batch, Examples.of(other), 0)
    wrong: Any = batch
    with pytest.raises(InvalidRequest, match=r"examples is Batch.*; give Examples.of\(batch\)"):
        PromptResponse.of(batch, wrong, 0)
    wrong = None
    with pytest.raises(InvalidRequest, match="batch is None; give the Batch"):
        PromptResponse.of(wrong, Examples.of(batch), 0)
