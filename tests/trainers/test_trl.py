"""A real optimizer step of TRL's ``GRPOTrainer`` on a batch of ours, against the loss in NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.batches import batch_of
from harness.groups import GroupSpec
from rollstream.sampler import Batch, InvalidRequest
from rollstream.sampler.shaping.examples import Examples

REASON = "needs PyTorch and TRL: make test-torch"
torch = pytest.importorskip("torch", reason=REASON)
trl = pytest.importorskip("trl", reason=REASON)
import transformers  # noqa: E402 - Only where there is PyTorch.
from datasets import Dataset  # noqa: E402
from tokenizers import Tokenizer, models  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from rollstream.trl import grpo_inputs  # noqa: E402

VOCABULARY = 64
PAD = 0
EPSILON_LOW, EPSILON_HIGH, BETA = 0.2, 0.28, 0.04


def tiny_model() -> Any:
    """Randomly initialised; the same each time."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=PAD,
        bos_token_id=1,
        eos_token_id=2,
    )
    return transformers.LlamaForCausalLM(config)


def tokenizer() -> Any:
    words = {"<pad>": PAD, "<s>": 1, "</s>": 2, **{f"w{i}": i for i in range(3, VOCABULARY)}}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w3")),
        pad_token="<pad>",
        eos_token="</s>",
    )


def member(seed: int, prompt: int, output: int, *, tools: bool) -> dict[str, Any]:
    """Fields of a rollout: log-probs near those of a random model, and those of the trainer and of
    the reference a little off, so that some ratios are clipped."""
    draw = np.random.default_rng(seed)
    logprobs = -np.log(VOCABULARY) + 0.3 * draw.standard_normal(output)
    mask = draw.random(output) < 0.7
    mask[-1] = True
    return {
        "prompt_tokens": draw.integers(3, VOCABULARY, prompt).astype("<i4"),
        "output_tokens": draw.integers(3, VOCABULARY, output).astype("<i4"),
        "logprobs": logprobs.astype("<f4"),
        "actor_logprobs": (logprobs + 0.2 * draw.standard_normal(output)).astype("<f4"),
        "ref_logprobs": (logprobs + 0.2 * draw.standard_normal(output)).astype("<f4"),
        **({"loss_mask": tuple(mask.tolist())} if tools else {}),
    }


def real_batch(*, tools: bool = False, columns: tuple[str, ...] = ()) -> Batch:
    """Groups of different prompts, and rollouts of different lengths in each."""
    specs = [
        GroupSpec(
            example_id=f"ex-{group}",
            rewards=(0.0, 1.0, 0.25),
            extras=[
                member(10 * group + i, 3 + group, 4 + 2 * i + group, tools=tools) for i in range(3)
            ],
        )
        for group in range(3)
    ]
    return batch_of(specs, columns=columns)


def trainer_of(model: Any, inputs: dict[str, Any], folder: Path, **settings: Any) -> Any:
    """As docs/guides/trainers.md has it, of one batch."""

    class RolloutTrainer(trl.GRPOTrainer):  # type: ignore[misc, name-defined]
        def get_train_dataloader(self) -> Any:
            return DataLoader([inputs], batch_size=None)

        def _prepare_inputs(self, inputs: dict[str, Any]) -> Any:
            return transformers.Trainer._prepare_inputs(self, inputs)

    config = trl.GRPOConfig(
        output_dir=str(folder),
        max_steps=1,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        per_device_train_batch_size=9,
        num_generations=3,
        max_completion_length=16,
        max_grad_norm=1e9,
        logging_steps=1,
        epsilon=EPSILON_LOW,
        epsilon_high=EPSILON_HIGH,
        report_to=[],
        bf16=False,
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        use_bias_correction_kl=False,
        **settings,
    )
    return RolloutTrainer(
        model=model,
        reward_funcs=lambda **_: [0.0],
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["w3"]}),  # Nothing is read of it.
        processing_class=tokenizer(),
    )


def reference(model: Any, batch: Batch, examples: Examples, loss_type: str, beta: float) -> Any:
    """Loss and gradient norm from the batch's own arrays, one sequence after the other, without
    padding: the model gives log-probs, NumPy all else, and the chain rule the gradient."""
    total_counted = int(examples.loss_mask.sum())
    loss, surrogate = 0.0, torch.zeros(())
    for i, one in enumerate(examples):
        tokens = torch.from_numpy(one.tokens.astype(np.int64))[None]
        logits = model(input_ids=tokens).logits[0, :-1].float()
        logps = logits.log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0]
        counted = one.loss_mask[1:]
        span = slice(examples.offsets[i] + 1, examples.offsets[i + 1])
        old = (batch.logprobs if batch.actor_logprobs is None else batch.actor_logprobs)[span]
        of_token, slope = clipped(logps.detach().numpy(), old, one.advantage[1:])
        if beta:
            assert batch.ref_logprobs is not None
            gap = batch.ref_logprobs[span] - logps.detach().numpy()
            of_token = of_token + beta * (np.exp(gap) - gap - 1)
            slope = slope + beta * (1 - np.exp(gap))
        weight = {
            "grpo": 1 / (counted.sum() * len(examples)),
            "dapo": 1 / total_counted,
            "dr_grpo": 1 / (len(examples) * 16),
        }[loss_type]
        loss += float((of_token * counted).sum() * weight)
        surrogate = surrogate + (torch.from_numpy(slope * counted * weight) * logps).sum()
    model.zero_grad()
    surrogate.backward()
    norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in model.parameters()))
    return loss, float(norm)


def clipped(
    logps: NDArray[np.float32], old: NDArray[np.float32], advantages: NDArray[np.float32]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The surrogate of PPO with clip-higher at each token, and its derivative by the log-prob."""
    ratio = np.exp(logps.astype(np.float64) - old)
    plain = ratio * advantages
    bound = np.clip(ratio, 1 - EPSILON_LOW, 1 + EPSILON_HIGH) * advantages
    return -np.minimum(plain, bound), np.where(plain <= bound, -plain, 0.0)


@pytest.mark.proves("A24", "F11")
@pytest.mark.parametrize(
    ("loss_type", "columns", "tools", "beta"),
    [
        ("grpo", (), False, 0.0),
        ("dapo", (), True, 0.0),
        ("dr_grpo", ("actor_logprobs",), False, 0.0),
        ("grpo", ("actor_logprobs", "ref_logprobs"), True, BETA),
    ],
)
def test_a_step_of_grpo_trainer_has_the_loss_and_gradient_of_the_batch(
    tmp_path: Path, loss_type: str, columns: tuple[str, ...], tools: bool, beta: float
) -> None:
    batch = real_batch(tools=tools, columns=columns)
    examples = Examples.of(batch, "grpo")
    loss, norm = reference(tiny_model(), batch, examples, loss_type, beta)
    assert abs(loss) > 1e-3
    assert norm > 1e-2
    tiny_model().save_pretrained(tmp_path)  # With a KL term TRL loads the reference anew.
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    inputs = grpo_inputs(batch, examples, pad_id=PAD)
    trainer = trainer_of(model, inputs, tmp_path, loss_type=loss_type, beta=beta)
    trainer.train()
    (logged,) = [line for line in trainer.state.log_history if "grad_norm" in line]
    assert logged["loss"] == pytest.approx(loss, abs=1e-5)
    assert float(logged["grad_norm"]) == pytest.approx(norm, abs=1e-5)
    assert any(not torch.equal(p, before[name]) for name, p in trainer.model.named_parameters())


def test_inputs_are_the_examples_with_prompts_to_the_left_and_completions_to_the_right() -> None:
    batch = real_batch(tools=True)
    examples = Examples.of(batch, "rloo")
    inputs = grpo_inputs(batch, examples, pad_id=PAD)
    for i, one in enumerate(examples):
        prompt = int(batch.prompt_lengths[i])
        at, to = inputs["prompt_mask"][i].bool(), inputs["completion_mask"][i].bool()
        assert inputs["prompt_ids"][i][at].tolist() == one.tokens[:prompt].tolist()
        assert inputs["completion_ids"][i][to].tolist() == one.tokens[prompt:].tolist()
        assert (at.long().diff() >= 0).all()
        assert (to.long().diff() <= 0).all()
        assert inputs["tool_mask"][i][to].bool().tolist() == one.loss_mask[prompt:].tolist()
        assert set(one.advantage[one.loss_mask].tolist()) == {inputs["advantages"][i].item()}
    assert inputs["num_items_in_batch"].item() == examples.loss_mask.sum()
    assert "tool_mask" not in grpo_inputs(real_batch(), Examples.of(real_batch()), pad_id=PAD)


def test_the_ratio_to_the_generator_is_truncated() -> None:
    batch = real_batch(columns=("actor_logprobs",))
    inputs = grpo_inputs(batch, Examples.of(batch), pad_id=PAD, ratio_max=1.1)
    ratio = inputs["importance_sampling_ratio"]
    untruncated = (inputs["old_per_token_logps"] - inputs["sampling_per_token_logps"]).exp()
    assert torch.allclose(ratio, untruncated.clamp(max=1.1))
    assert (ratio < untruncated).any()


@pytest.mark.parametrize("ratio_max", [0, -1.0, float("nan"), "2", True])
def test_a_ratio_that_truncates_nothing_is_refused(ratio_max: Any) -> None:
    batch = real_batch(columns=("actor_logprobs",))
    with pytest.raises(InvalidRequest, match=r"ratio_max is .*; give a"):
        grpo_inputs(batch, Examples.of(batch), pad_id=PAD, ratio_max=ratio_max)


def test_examples_without_log_probs_are_refused_with_the_remedy() -> None:
    silent = {"logprobs": None}
    batch = batch_of([GroupSpec(extras=({}, silent))])
    examples = Examples.of(batch)
    with pytest.raises(InvalidRequest, match=r"1 of 2 examples, .* 1, have no gen.*have_log_probs"):
        grpo_inputs(batch, examples, pad_id=PAD)
    there = examples.take(np.flatnonzero(examples.have_log_probs()))
    assert len(grpo_inputs(batch, there, pad_id=PAD)["advantages"]) == 1
