"""Examples in the shape of verl's ``DataProto``; docs/guides/verl.md shows them."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from harness.groups import GroupSpec, every_extra
from harness.sampler_worlds import memory_world
from rollstream.sampler import Batch
from rollstream.sampler.training.examples.examples import Examples

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")
from rollstream.verl import proto_arguments  # noqa: E402

PAD = 0


def served(specs: list[GroupSpec], *columns: str) -> Batch:
    """By a sampler in memory."""
    with closing(memory_world()) as world:
        world.writer().flush(*specs)
        return world.open().next_batch(0, len(specs), columns=columns)


@pytest.mark.proves("F11")
def test_a_data_proto_has_the_examples_by_the_names_of_verl() -> None:
    specs = [GroupSpec(example_id=f"ex-{i}", prompt=2 + i, output=3 + 2 * i) for i in range(3)]
    batch = served(specs)
    examples = Examples.of(batch, "grpo")
    made = proto_arguments(batch, examples, pad_id=PAD)
    tensors = made["tensors"]
    assert torch.equal(
        torch.cat([tensors["prompts"], tensors["responses"]], dim=1), tensors["input_ids"]
    )
    for i, one in enumerate(examples):
        prompt = int(batch.prompt_lengths[i])
        there = tensors["attention_mask"][i].bool()
        assert tensors["input_ids"][i][there].tolist() == one.tokens.tolist()
        assert tensors["position_ids"][i][there].tolist() == list(range(len(one.tokens)))
        counted = tensors["response_mask"][i].bool()
        assert counted.sum() == one.loss_mask.sum()
        for name, values in (
            ("rollout_log_probs", one.generator_log_probs),
            ("old_log_probs", one.generator_log_probs),
            ("advantages", one.advantage),
            ("returns", one.advantage),
        ):
            assert tensors[name][i][counted].tolist() == values[one.loss_mask].tolist(), name
        scores = tensors["token_level_rewards"][i]
        assert scores.nonzero().flatten().tolist() in ([], [len(one.tokens) - prompt - 1])
        assert scores.sum() == batch.trajectory_returns[i]
    assert all(len(tensor) == len(examples) for tensor in tensors.values())
    groups = np.array(batch.sampled.group_ids, object)[batch.group_index]
    assert made["non_tensors"]["uid"].tolist() == groups.tolist()
    assert made["meta_info"] == {"global_steps": batch.step}


def test_log_probs_of_trainer_and_reference_are_there_where_they_were_asked_for() -> None:
    spec = GroupSpec(extras=(every_extra(),) * 2, loss_mask=(True, False, True))
    batch = served([spec], "old_logprobs", "ref_logprobs")
    assert batch.old_logprobs is not None
    assert batch.ref_logprobs is not None
    tensors = proto_arguments(batch, Examples.of(batch), pad_id=PAD)["tensors"]
    mask = batch.loss_mask.reshape(2, 5)[:, 2:]
    assert tensors["response_mask"].bool().tolist() == mask.tolist()
    for name, column in (
        ("old_log_probs", batch.old_logprobs),
        ("ref_log_prob", batch.ref_logprobs),
        ("rollout_log_probs", batch.logprobs),
    ):
        wanted = np.where(mask, column.reshape(2, 5)[:, 2:], 0)
        assert np.array_equal(tensors[name].numpy(), wanted), name
