"""The whole run: Kafka, a sealer, env workers, the sampler actor, the ranks, the curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from examples.demo.fleet import Fleet, Member
from examples.demo.folder import empty_folder
from examples.grpo_torch import settings
from examples.grpo_torch.again import Comparison, train_again
from examples.grpo_torch.curve import draw_curve
from examples.grpo_torch.errors import GrpoError
from examples.grpo_torch.ranks import Ranks
from examples.grpo_torch.trained import Trained, recorded
from rollstream.console.broker.embedded import EmbeddedKafka
from rollstream.console.fetching import Fetching
from rollstream.consumers import create_deployment
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.config.load import load_config
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Evaluation, SamplerClient

_STEPS_AFTER_KILL = 4  # So many beyond the kill are compared too.


@dataclass(frozen=True)
class Result:
    """What the run showed.

    Attributes:
        trained: by rank 0, the last time that it took each step.
        held_out: by rising step.
        compared: empty where nobody was killed.
    """

    trained: Sequence[Trained]
    held_out: Sequence[Evaluation]
    compared: Sequence[Comparison]

    @property
    def learned(self) -> bool:
        """Whether the held-out reward went from below the lower to above the upper bound."""
        first, *_, last = (one.total.reward_mean or 0.0 for one in self.held_out)
        return first < settings.REWARD_BEFORE and last > settings.REWARD_AFTER

    @property
    def same(self) -> bool:
        """Whether the kill changed no batch and no weights."""
        return all(one.digests and one.weights for one in self.compared)


def run_grpo(
    folder: Path, *, seed: int, steps: int, kill_at: int | None, console: Console
) -> Result:
    """Runs it in ``folder``, which is emptied first.

    Raises:
        FolderNotOurs: there are files in it that no example wrote; nothing was touched.
        GrpoError: a process cannot be kept alive, or the last weights were not evaluated.
    """
    folder = folder.absolute()
    empty_folder(folder)
    (folder / "logs").mkdir()
    clock = SystemClock()
    with Fetching(console) as fetching:
        kafka = EmbeddedKafka(folder / "kafka", on_progress=fetching).start()
    with kafka:
        path = folder / "rollstream.toml"
        path.write_text(settings.config_text(kafka.bootstrap, folder / "data", seed))
        create_deployment(load_config(path))
        fleet = Fleet(
            folder / "logs",
            _members(kafka.bootstrap, path, seed),
            report=console.print,
            clock=clock,
        )
        # Ranks share the actor, which lives as long as this client, also while none of them does.
        with SamplerClient.attach(settings.SAMPLER, config=path) as sampler:
            fleet.start()
            try:
                with Progress(
                    TextColumn("[bold]step {task.completed:>3.0f}"),
                    BarColumn(bar_width=24),
                    TextColumn("{task.description}"),
                    TimeElapsedColumn(),
                    console=console,
                ) as progress:
                    task = progress.add_task("waiting for the first batch", total=steps)

                    def look() -> None:
                        fleet.check()
                        if seen := recorded(folder / "ranks" / "rank-0.jsonl"):
                            text = f"reward {seen[-1].reward:.2f}  lag {seen[-1].lag:.1f}"
                            progress.update(task, completed=seen[-1].step + 1, description=text)

                    def report(text: str) -> None:
                        progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

                    ranks = Ranks(path, folder / "ranks", seed, steps, clock, report, look)
                    ranks.train(kill_at=kill_at)
                held_out = _held_out(sampler, steps, Deadline(settings.HELD_OUT_TIMEOUT_S, clock))
            finally:
                fleet.stop()
            compared: list[Comparison] = []
            if kill_at is not None:
                upto = min(kill_at + 1 + _STEPS_AFTER_KILL, steps)
                compared = train_again(ranks, upto)
    trained = {one.step: one for one in recorded(folder / "ranks" / "rank-0.jsonl")}
    result = Result([trained[step] for step in sorted(trained)], held_out, compared)
    draw_curve(result.trained, held_out, kill_at, folder / "learning_curve.png")
    return result


def _members(bootstrap: str, config: Path, seed: int) -> list[Member]:
    """A sealer and the env workers, the first of which evaluates too."""
    fleet = [Member("sealer", ["-m", "rollstream.console.entry", "seal", "--config", str(config)])]
    for i in range(settings.WORKERS):
        name = f"worker-{i}"
        arguments = ["--bootstrap", bootstrap, "--replica", name, "--seed", str(seed)]
        evaluates = [] if i else ["--evaluates"]
        module = ["-m", "examples.grpo_torch.worker"]
        fleet.append(Member(name, [*module, *arguments, *evaluates]))
    return fleet


def _held_out(sampler: SamplerClient, steps: int, deadline: Deadline) -> list[Evaluation]:
    """What the policies earned on the held-out problems, once the last weights are among them."""
    answers = settings.HELD_OUT * settings.HELD_OUT_ANSWERS
    while True:
        sampler.flush()
        found = [one for one in sampler.evaluations() if one.total.trajectories == answers]
        # After a resume a policy of the new epoch may have the step of one before.
        newest = {one.weight_step: one for one in sorted(found, key=lambda e: e.policy_epoch)}
        if steps in newest:
            return [newest[step] for step in sorted(newest)]
        if deadline.passed():
            raise GrpoError(
                f"weights {steps} were not evaluated on the held-out problems in time; "
                "see the logs of worker-0"
            )
        deadline.log_waiting(lambda: f"the evaluation of weights {steps}")
        deadline.wait(0.5)
