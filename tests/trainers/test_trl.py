"""A real optimizer step of TRL's ``GRPOTrainer`` on a batch of ours, against the loss in NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.batches import batch_of
from harness.groups import GroupSpec
from harness.sampler_worlds import memory_world
from rollstream.sampler import Batch, InvalidRequest
from rollstream.sampler.training.examples.examples import Examples

REASON = "needs PyTorch and TRL: make test-torch"
torch = pytest.importorskip("torch", reason=REASON)
trl = pytest.importorskip("trl", reason=REASON)
import transformers  # noqa: E402 - Only where there is PyTorch.
from tokenizers import Tokenizer, models  # noqa: E402

from rollstream.torch import RolloutDataset  # noqa: E402
from rollstream.trl import grpo_inputs  # noqa: E402
from rollstream.trl.trainer import (  # noqa: E402
    RolloutTrainer,
    SamplerCallback,
    checkpointed_step,
)

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
        "old_logprobs": (logprobs + 0.2 * draw.standard_normal(output)).astype("<f4"),
        "ref_logprobs": (logprobs + 0.2 * draw.standard_normal(output)).astype("<f4"),
        **({"loss_mask": tuple(mask.tolist())} if tools else {}),
    }


def real_batch(*, tools: bool = False, columns: tuple[str, ...] = (), seed: int = 0) -> Batch:
    """Groups of different prompts, and rollouts of different lengths in each."""
    specs = [
        GroupSpec(
            example_id=f"ex-{group}",
            rewards=(0.0, 1.0, 0.25),
            extras=[
                member(seed + 10 * group + i, 3 + group, 4 + 2 * i + group + seed % 3, tools=tools)
                for i in range(3)
            ],
        )
        for group in range(3)
    ]
    return batch_of(specs, columns=columns)


def trainer_of(
    model: Any, rollouts: Iterable[Any], callback: SamplerCallback, folder: Path, **settings: Any
) -> RolloutTrainer:
    config = trl.GRPOConfig(
        output_dir=str(folder),
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
        disable_tqdm=True,
        use_bias_correction_kl=False,
        **{"max_steps": 1, "save_strategy": "no", **settings},
    )
    return RolloutTrainer(
        model, rollouts=rollouts, callback=callback, args=config, processing_class=tokenizer()
    )


def reference(model: Any, batches: Sequence[Batch], loss_type: str, beta: float) -> Any:
    """Loss and gradient norm of these batches as one, from their own arrays, one sequence after the
    other, without padding: the model gives log-probs, NumPy all else, the chain rule the
    gradient."""
    every = [(batch, Examples.of(batch, "grpo")) for batch in batches]
    sequences = sum(len(examples) for _, examples in every)
    tokens_counted = sum(int(examples.loss_mask.sum()) for _, examples in every)
    loss, surrogate = 0.0, torch.zeros(())
    for batch, examples in every:
        of_micro_batch = int(examples.loss_mask.sum()) * len(every)
        for i, one in enumerate(examples):
            tokens = torch.from_numpy(one.tokens.astype(np.int64))[None]
            logits = model(input_ids=tokens).logits[0, :-1].float()
            logps = logits.log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0]
            counted = one.loss_mask[1:]
            span = slice(examples.offsets[i] + 1, examples.offsets[i + 1])
            old = (batch.logprobs if batch.old_logprobs is None else batch.old_logprobs)[span]
            now = logps.detach().numpy().astype(np.float64)
            of_token, slope = LOSSES[loss_type](now, old, one.advantage[1:], counted)
            if beta:
                assert batch.ref_logprobs is not None
                gap = batch.ref_logprobs[span] - now
                of_token = of_token + beta * (np.exp(gap) - gap - 1)
                slope = slope + beta * (1 - np.exp(gap))
            weight = {
                "grpo": 1 / (counted.sum() * sequences),
                "sapo": 1 / (counted.sum() * sequences),
                "luspo": 1 / sequences,
                "dr_grpo": 1 / (sequences * 16),
                "bnpo": 1 / of_micro_batch,
            }.get(loss_type, 1 / tokens_counted)
            loss += float((of_token * counted).sum() * weight)
            surrogate = surrogate + (torch.from_numpy(slope * counted * weight) * logps).sum()
    model.zero_grad()
    surrogate.backward()
    norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in model.parameters()))
    return loss, float(norm)


Array = NDArray[Any]


def clipped(now: Array, old: Array, advantages: Array, _: Array) -> tuple[Array, Array]:
    """The surrogate of PPO with clip-higher at each token, and its derivative by the log-prob."""
    ratio = np.exp(now - old)
    plain = ratio * advantages
    bound = np.clip(ratio, 1 - EPSILON_LOW, 1 + EPSILON_HIGH) * advantages
    return -np.minimum(plain, bound), np.where(plain <= bound, -plain, 0.0)


def cispo(now: Array, old: Array, advantages: Array, _: Array) -> tuple[Array, Array]:
    """Truncated weights that are constants (MiniMax-M1, 2025)."""
    weights = np.minimum(np.exp(now - old), EPSILON_HIGH) * advantages
    return -weights * now, -weights


def vespo(now: Array, old: Array, advantages: Array, counted: Array) -> tuple[Array, Array]:
    """A gamma weight of each sequence, a constant, as in TRL with its default settings."""
    ratio = np.exp(((now - old) * counted).sum())
    k, rate = np.where(advantages >= 0, 2.0, 3.0), np.where(advantages >= 0, 3.0, 2.0)
    weights = np.exp(rate + k * np.log(ratio) - rate * ratio) * advantages
    return -weights * now, -weights


def sapo(now: Array, old: Array, advantages: Array, _: Array) -> tuple[Array, Array]:
    """A soft gate (SAPO, 2025) with TRL's default temperatures."""
    ratio = np.exp(now - old)
    heat = np.where(advantages > 0, 1.0, 1.05)
    gate = 1 / (1 + np.exp(-heat * (ratio - 1)))
    return -gate * 4 / heat * advantages, -4 * gate * (1 - gate) * ratio * advantages


def luspo(now: Array, old: Array, advantages: Array, counted: Array) -> tuple[Array, Array]:
    """A ratio of each sequence, whose loss counts as often as it has tokens."""
    mean = ((now - old) * counted).sum() / counted.sum()
    return clipped(np.full_like(now, mean), np.zeros_like(now), advantages, counted)


LOSSES = {
    **dict.fromkeys(("grpo", "bnpo", "dr_grpo", "dapo"), clipped),
    "cispo": cispo,
    "vespo": vespo,
    "sapo": sapo,
    "luspo": luspo,
}


@pytest.fixture
def idle() -> Iterator[SamplerCallback]:
    """For batches that no sampler served."""
    with closing(memory_world()) as world:
        yield SamplerCallback(world.open(), first_step=0, ack=lambda _: None)


def trained_alike(
    folder: Path,
    callback: SamplerCallback,
    batches: Sequence[Batch],
    loss_type: str,
    beta: float = 0.0,
) -> None:
    """One optimizer step of the trainer on these micro-batches has their loss and gradient."""
    loss, norm = reference(tiny_model(), batches, loss_type, beta)
    assert abs(loss) > 1e-4
    assert norm > 1e-3
    tiny_model().save_pretrained(folder)  # With a KL term TRL loads the reference anew.
    model = transformers.LlamaForCausalLM.from_pretrained(folder)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    level = "sequence" if loss_type == "luspo" else "token"
    trainer = trainer_of(
        model,
        batches,
        callback,
        folder,
        loss_type=loss_type,
        beta=beta,
        importance_sampling_level=level,
        gradient_accumulation_steps=len(batches),
    )
    trainer.train()
    (logged,) = [line for line in trainer.state.log_history if "grad_norm" in line]
    assert logged["loss"] == pytest.approx(loss, abs=1e-5)
    assert float(logged["grad_norm"]) == pytest.approx(norm, abs=1e-5)
    assert any(not torch.equal(p, before[name]) for name, p in trainer.model.named_parameters())


@pytest.mark.proves("A24", "F11")
@pytest.mark.parametrize("micro_batches", [1, 4])
@pytest.mark.parametrize("loss_type", sorted(LOSSES))
def test_a_step_has_the_loss_and_gradient_of_its_micro_batches_as_one_batch(
    tmp_path: Path, idle: SamplerCallback, loss_type: str, micro_batches: int
) -> None:
    batches = [real_batch(tools=True, seed=100 * n + n) for n in range(micro_batches)]
    trained_alike(tmp_path, idle, batches, loss_type)


@pytest.mark.proves("A24", "F11")
@pytest.mark.parametrize(
    ("loss_type", "columns", "beta"),
    [
        ("dr_grpo", ("old_logprobs",), 0.0),
        ("grpo", ("old_logprobs", "ref_logprobs"), BETA),
        ("dapo", ("old_logprobs", "ref_logprobs"), BETA),
    ],
)
def test_a_step_uses_the_log_probs_that_the_batch_has(
    tmp_path: Path, idle: SamplerCallback, loss_type: str, columns: tuple[str, ...], beta: float
) -> None:
    batches = [real_batch(tools=True, columns=columns, seed=n) for n in range(2)]
    trained_alike(tmp_path, idle, batches, loss_type, beta)


@pytest.mark.proves("F11", "F1")
def test_a_run_acks_each_micro_batch_publishes_each_step_and_goes_on_from_a_checkpoint(
    tmp_path: Path,
) -> None:
    with closing(memory_world()) as world:
        specs = [GroupSpec(example_id=f"ex-{n}", prompt=3, output=4) for n in range(8)]
        for spec in specs:
            fields = member(0, 3, 4, tools=False)
            world.writer().flush(replace(spec, extras=(fields, fields)))
        sampler = world.open()
        told: list[int] = []

        def publish(step: int, _: Any) -> str:
            told.append(step)
            return f"file:///weights/{step}"

        def run(checkpoint: Path | None, max_steps: int) -> list[str]:
            step = sampler.resume(checkpointed_step(checkpoint))
            callback = SamplerCallback(sampler, first_step=step, publish=publish)
            rollouts = RolloutDataset(sampler, first_step=step, num_groups=1, timeout_s=30.0)
            trainer = trainer_of(
                tiny_model(),
                rollouts,
                callback,
                tmp_path,
                max_steps=max_steps,
                gradient_accumulation_steps=2,
                save_strategy="steps",
                save_steps=2,
                loss_type="dapo",
                beta=0.0,
            )
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
            return [f"step-{n}" for n in told]

        assert run(None, 3) == ["step-0", "step-2", "step-4", "step-6"]
        assert sampler.stats().outcomes == {"trained": 6}
        found = [checkpointed_step(tmp_path / f"checkpoint-{step}") for step in (2, 3)]
        assert found == [3, 5]
        told.clear()
        assert run(tmp_path / "checkpoint-3", 4) == ["step-6", "step-8"]
        assert sampler.stats().outcomes == {"trained": 8}


def test_a_checkpoint_before_the_first_step_makes_nothing_final(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-0"
    folder.mkdir()
    with closing(memory_world()) as world:
        sampler = world.open()
        callback = SamplerCallback(sampler, first_step=sampler.resume(None))
        state = transformers.TrainerState(is_world_process_zero=True)
        args = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
        callback.on_save(args, state, transformers.TrainerControl())
        assert checkpointed_step(folder) is None
        assert sampler.resume(checkpointed_step(folder)) == 0


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
    batch = real_batch(columns=("old_logprobs",))
    inputs = grpo_inputs(batch, Examples.of(batch), pad_id=PAD, ratio_max=1.1)
    ratio = inputs["importance_sampling_ratio"]
    untruncated = (inputs["old_per_token_logps"] - inputs["sampling_per_token_logps"]).exp()
    assert torch.allclose(ratio, untruncated.clamp(max=1.1))
    assert (ratio < untruncated).any()


@pytest.mark.parametrize("ratio_max", [0, -1.0, float("nan"), "2", True])
def test_a_ratio_that_truncates_nothing_is_refused(ratio_max: Any) -> None:
    batch = real_batch(columns=("old_logprobs",))
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
