"""``examples/grpo_torch``: a transformer, a killed rank, and a run that is the same without it."""

# ruff: noqa: E402 - The example is imported where there is PyTorch, and skipped elsewhere.

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from harness.source_tree import ROOT
from rollstream.sampler import Examples, Packs, plan_packs
from rollstream.sampler.batch.token_arrays import TokenArrays

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")
pytest.importorskip("transformers", reason="needs transformers: make test-torch")

from examples.grpo_torch import settings
from examples.grpo_torch.errors import PeerLost
from examples.grpo_torch.loss import grpo_loss, token_logprobs
from examples.grpo_torch.model import load_weights, new_model
from examples.grpo_torch.peers import Peers
from examples.grpo_torch.run import Result, run_grpo
from examples.grpo_torch.sampling import Answer, sample
from examples.grpo_torch.trained import recorded
from examples.grpo_torch.words import Words

STEPS, KILL_AT = 14, 10
# The newest checkpoint before it holds step 7, so these are taken again, and 10 for the first time.
TAKEN_TWICE = range(settings.CHECKPOINT_EVERY, KILL_AT)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path, str]:
    """The run, its folder, and what it reported."""
    said = io.StringIO()
    folder = tmp_path_factory.mktemp("grpo") / "run"
    console = Console(file=said, width=1000)
    result = run_grpo(folder, seed=0, steps=STEPS, kill_at=KILL_AT, console=console)
    return result, folder, said.getvalue()


@pytest.mark.broker
@pytest.mark.timeout(900)
@pytest.mark.proves("F23")
def test_a_killed_rank_ends_its_peer_with_an_error_and_changes_no_batch_and_no_weights(
    finished: tuple[Result, Path, str],
) -> None:
    result, folder, said = finished
    assert "ranks ended with [75, -9]: grpo: rank 0 waited for the gradients of step 10" in said
    of_rank_0 = [one.step for one in recorded(folder / "ranks" / "rank-0.jsonl")]
    assert of_rank_0 == [*range(KILL_AT), *range(settings.CHECKPOINT_EVERY, STEPS)]
    assert [one.step for one in result.compared] == list(range(STEPS))
    assert all(one.digests and one.weights for one in result.compared)
    # Before the kill, after the resume, and in the run without a kill.
    assert {one.step for one in result.compared if one.times == 3} == set(TAKEN_TWICE)


@pytest.mark.broker
@pytest.mark.timeout(900)
@pytest.mark.proves("F23", "F22")
def test_published_weights_are_what_workers_sample_with(
    finished: tuple[Result, Path, str],
) -> None:
    result, folder, _ = finished
    assert result.held_out[-1].weight_step == STEPS  # Workers followed to the last policy.
    assert max(one.lag for one in result.trained) <= 8
    model, first = new_model(0), new_model(0)
    load_weights(model, str(folder / "ranks" / "weights" / f"step-{STEPS}.safetensors"))
    prompts = [problem.prompt_tokens for problem in Words(0, settings.HELD_OUT).held_out]
    assert np.mean(scores(model, prompts)) > np.mean(scores(first, prompts))
    assert (folder / "learning_curve.png").read_bytes()[1:4] == b"PNG"


def scores(model: object, prompts: list[np.ndarray]) -> list[float]:
    """Of sampled answers to the held-out problems."""
    torch.manual_seed(0)
    words = Words(0, settings.HELD_OUT)
    answers = sample(model, prompts, 8)
    return [
        words.score(problem, answer.tokens)
        for problem, of_one in zip(words.held_out, answers, strict=True)
        for answer in of_one
    ]


def test_packed_log_probs_are_those_that_generate_sampled_with() -> None:
    """So examples of a pack do not see each other, nor what stands before them, nor padding."""
    torch.manual_seed(0)
    model = new_model(3)
    prompts = [problem.prompt_tokens for problem in Words(3, 8).held_out]
    answers = sample(model, prompts, 4)
    flat = [(p, a) for p, of_one in zip(prompts, answers, strict=True) for a in of_one]
    assert {len(answer.tokens) for _, answer in flat} > {4}, "answers differ in length"
    examples = examples_of(flat)
    packs = Packs.of(examples, plan_packs(examples.lengths, 48))
    assert len(packs.examples[0]) > 3
    tensors = {name: torch.from_numpy(array) for name, array in packs.arrays().items()}
    with torch.no_grad():
        logprobs, _ = token_logprobs(model, tensors)
    mask = packs.loss_mask[:, 1:]
    sampled = packs.generator_log_probs[:, 1:]
    np.testing.assert_allclose(logprobs.numpy()[mask], sampled[mask], atol=1e-4)


def test_a_batch_in_which_no_token_counts_changes_no_weight() -> None:
    torch.manual_seed(0)
    model = new_model(3)
    prompts = [problem.prompt_tokens for problem in Words(3, 2).held_out]
    answers = sample(model, prompts, 1)
    examples = examples_of([(p, a) for p, (a,) in zip(prompts, answers, strict=True)])
    examples.loss_mask[:] = False
    packs = Packs.of(examples, plan_packs(examples.lengths, 48))
    tensors = {name: torch.from_numpy(array) for name, array in packs.arrays().items()}
    loss = grpo_loss(model, tensors, tokens=int(examples.loss_mask.sum()))
    loss.backward()
    assert loss.item() == 0
    assert all(not one.grad.any() for one in model.parameters() if one.grad is not None)


def examples_of(flat: list[tuple[np.ndarray, Answer]]) -> Examples:
    lengths = [len(prompt) + len(answer.tokens) for prompt, answer in flat]
    mask = np.concatenate([np.repeat([False, True], [len(p), len(a.tokens)]) for p, a in flat])
    logprobs = np.concatenate([np.r_[np.zeros(len(p)), a.logprobs] for p, a in flat])
    n = len(flat)
    return Examples(
        tokens=np.concatenate([np.r_[p, a.tokens] for p, a in flat]).astype(np.int32),
        offsets=np.r_[0, np.cumsum(lengths)].astype(np.int64),
        loss_mask=mask,
        advantages=mask.astype(np.float32),
        generator_log_probs=logprobs.astype(np.float32),
        token_arrays=TokenArrays({}, {}),
        rows=np.arange(n),
        turns=np.ones(n, np.int32),
        apart=np.zeros(n, np.bool_),
        trajectories=np.arange(n, dtype=np.int32),
        weight_steps=np.zeros(n, np.int64),
        policy_versions=("step-0",) * n,
    )


STANDS_STILL = """
import sys
from pathlib import Path
from examples.grpo_torch.peers import Peers
with Peers(1, 2, Path(sys.argv[1]), 60.0):
    sys.stdin.read()
"""


def test_a_rank_whose_peer_stands_still_gives_up_at_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    meeting = tmp_path / "meeting"
    command = [sys.executable, "-c", STANDS_STILL, str(meeting)]
    model = torch.nn.Linear(2, 1)
    model(torch.ones(2)).backward()
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT) as peer:
        try:
            with (
                Peers(0, 2, meeting, 20.0) as peers,
                pytest.raises(PeerLost, match="the gradients of step 7"),
            ):
                peers.sum_gradients(model, 7)
        finally:
            peer.kill()


def test_the_lines_that_the_readme_shows_are_those_that_run() -> None:
    folder = ROOT / "examples" / "grpo_torch"
    blocks = (folder / "README.md").read_text(encoding="utf-8").split("```python\n")[1:]
    sources = "\n".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    shown = [block.partition("```")[0] for block in blocks]
    assert [lines for lines in shown if lines not in sources] == []
    assert sum(lines.count("\n") for lines in shown) <= 45
