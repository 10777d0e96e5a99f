"""The whole demo: Kafka, sealers, env replicas, the sampler actor, a trainer, the audit."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from examples.demo import settings
from examples.demo.chaos import Chaos
from examples.demo.curve import draw_curve
from examples.demo.fleet import Fleet, members
from examples.demo.folder import empty_folder
from examples.demo.history import History, StepSeen
from examples.demo.summary import print_summary
from examples.demo.tasks import TASK_NAMES
from examples.demo.trainer import Trainer
from rollstream.console.broker.embedded import EmbeddedKafka
from rollstream.console.fetching import Fetching
from rollstream.console.page.look import page_of
from rollstream.console.services import Services
from rollstream.consumers import audit, create_deployment
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.config.load import load_config
from rollstream.sampler import SamplerClient


def run_demo(folder: Path, *, chaos: bool, console: Console | None = None) -> bool:
    """Runs it in ``folder``, which is emptied first.

    True when the policy learned every task and the audit holds.

    Raises:
        FolderNotOurs: there are files in it that no demo wrote; nothing was touched.
    """
    console = console or Console()
    folder = folder.absolute()
    empty_folder(folder)
    (folder / "logs").mkdir()
    clock = SystemClock()
    with Fetching(console) as fetching:
        kafka = EmbeddedKafka(folder / "kafka", on_progress=fetching).start()
    with kafka:
        path = folder / "rollstream.toml"
        path.write_text(settings.config_text(kafka.bootstrap, folder / "data"))
        config = load_config(path)
        create_deployment(config)
        (folder / "weights").mkdir()
        fleet = Fleet(
            folder / "logs",
            members(kafka.bootstrap, path),
            report=console.print,
            clock=clock,
        )
        with SamplerClient.attach(settings.SAMPLER, config=path) as sampler:
            fleet.start()
            try:
                history, killed = _train(sampler, folder, fleet, console, chaos=chaos)
            finally:
                fleet.stop()
            sampler.flush()
            evaluations = sampler.evaluations()
        history.save(folder / "history.json")
        draw_curve(history, TASK_NAMES, folder / "learning_curve.png")
        page = page_of(Services(), config, settings.SAMPLER, timeout_s=settings.PAGE_S)
        (folder / "page.html").write_bytes(page)
        console.print("reading every log and file once more for the audit …")
        report = audit(config)
    return print_summary(console, history, evaluations, report, killed, folder)


def _train(
    sampler: SamplerClient,
    folder: Path,
    fleet: Fleet,
    console: Console,
    *,
    chaos: bool,
) -> tuple[History, list[str]]:
    """The run itself, with a line of progress; the history, and what was killed."""
    columns = (
        TextColumn("[bold]step {task.completed:>3.0f}"),
        BarColumn(bar_width=24),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("waiting for the first batch", total=settings.STEPS_MAX)
        killer: Chaos | None = None

        def before_step(step: int) -> None:
            fleet.check()
            if killer is not None:
                killer.before_step(step)

        def after_step(seen: StepSeen) -> None:
            rewards = "  ".join(
                f"{name} {trainer.history.recent_reward(name):.2f}" for name in TASK_NAMES
            )
            text = f"reward {rewards}  lag {seen.lag_mean:.1f}  ready {seen.groups_ready}"
            progress.update(task, completed=seen.step + 1, description=text)

        trainer = Trainer(
            sampler,
            folder / "weights",
            folder / "checkpoint.bin",
            clock=SystemClock(),
            before_step=before_step,
            after_step=after_step,
        )
        if chaos:

            def mark(step: int, text: str) -> None:
                trainer.history.marks.append((step, text))
                progress.console.print(f"step {step}: {text}; its manager starts another")

            killer = Chaos(fleet, lambda: sampler.stats().pid, mark)
        return trainer.run(), killer.killed if killer is not None else []
