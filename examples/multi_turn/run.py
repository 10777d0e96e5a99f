"""The whole run: Kafka, a sealer, env workers, a trainer with its pool, the audit, the curve."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from examples.demo.curve import draw_curve
from examples.demo.fleet import Fleet, Member
from examples.demo.folder import empty_folder
from examples.demo.history import History, StepSeen
from examples.multi_turn import settings
from examples.multi_turn.lake import ENVIRONMENT
from examples.multi_turn.trainer import train
from rollstream.console.broker.embedded import EmbeddedKafka
from rollstream.console.fetching import Fetching
from rollstream.consumers import AuditReport, audit, create_deployment
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.config.load import load_config
from rollstream.sampler import Sampler


@dataclass(frozen=True)
class Result:
    """What the run showed.

    Attributes:
        dropped: finished prompts for which the pool had no room any more.
    """

    history: History
    dropped: int
    audited: AuditReport

    @property
    def learned(self) -> bool:
        return self.history.recent_reward(ENVIRONMENT) >= settings.RETURN_GOAL


def run_multi_turn(folder: Path, *, console: Console) -> Result:
    """Runs it in ``folder``, which is emptied first.

    Raises:
        FolderNotOurs: there are files in it that no such run wrote; nothing was touched.
        NoPromptFinished: the workers or the sealer did not work.
    """
    folder = folder.absolute()
    empty_folder(folder)
    for name in ("logs", "weights"):
        (folder / name).mkdir()
    clock = SystemClock()
    with Fetching(console) as fetching:
        kafka = EmbeddedKafka(folder / "kafka", on_progress=fetching).start()
    with kafka:
        path = folder / "rollstream.toml"
        path.write_text(settings.config_text(kafka.bootstrap, folder / "data"))
        config = load_config(path)
        create_deployment(config)
        fleet = Fleet(
            folder / "logs", _members(kafka.bootstrap, path), report=console.print, clock=clock
        )

        def after_step(seen: StepSeen) -> None:
            fleet.check()
            if seen.step % 20 == 0:
                mean_return = seen.rewards[ENVIRONMENT]
                console.print(f"step {seen.step:>3}: return {mean_return:.2f}")

        with Sampler(settings.POOL, config=config) as sampler:
            fleet.start()
            try:
                history = train(sampler, folder / "weights", clock, after_step)
            finally:
                fleet.stop()
            dropped = sampler.stats().evictions
        draw_curve(
            history,
            (ENVIRONMENT,),
            folder / "learning_curve.png",
            title="An agent of many turns: FrozenLake through a trajectory pool",
        )
        return Result(history, dropped, audit(config))


def _members(bootstrap: str, config: Path) -> list[Member]:
    """A sealer and the env workers."""
    fleet = [Member("sealer", ["-m", "rollstream.console.entry", "seal", "--config", str(config)])]
    for i in range(settings.WORKERS):
        name = f"worker-{i}"
        arguments = ["--bootstrap", bootstrap, "--worker", name, "--seed", str(settings.SEED + i)]
        fleet.append(Member(name, ["-m", "examples.multi_turn.worker", *arguments]))
    return fleet
