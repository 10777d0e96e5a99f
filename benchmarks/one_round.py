"""One round of one system: starts services, replicas and trainer, measures, ends them all."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from benchmarks.measure import Usage, Watcher
from benchmarks.progress import Progress
from benchmarks.replica import run_replica
from benchmarks.scenarios import Scenario
from benchmarks.systems.interface import START_TIMEOUT_S, STOP_TIMEOUT_S, TAKE_TIMEOUT_S, System
from benchmarks.trainer import Measured, Ready, run_trainer

LOG_TAIL_LINES = 20
_spawn = multiprocessing.get_context("spawn")


class RoundFailed(RuntimeError):
    """A process of the round ended early or did not answer."""


@dataclass(frozen=True)
class Round:
    """The figures of one round; memory and processor time by the label of a process.

    Attributes:
        latencies_ms: of each rollout, from ``publish`` to the trainer, where they go one at a time.
    """

    rollouts_per_s: float
    latencies_ms: list[float]
    peak_rss_mib: dict[str, float]
    cpu_us_per_rollout: dict[str, float]


def run_round(system: System, scenario: Scenario, *, warm_up_s: float) -> Round:
    """Runs a round.

    Raises:
        RoundFailed: a process failed, as it does where the system did not deliver exactly what was
            sent.
    """
    with tempfile.TemporaryDirectory(prefix=f"bench-{system.name}-") as name:
        folder = Path(name)
        progress_path = folder / "progress"
        watcher = Watcher(Progress.create(progress_path))
        with _with_logs_in_errors(folder), system.services(folder, scenario) as services:
            for label, pid in services.pids.items():
                watcher.add(label, pid)
            trainer_arguments = (system, services.address, scenario, warm_up_s, progress_path)
            with child("trainer", run_trainer, trainer_arguments) as trainer:
                ready = trainer.receive(START_TIMEOUT_S)
                assert isinstance(ready, Ready)
                for label, pid in ready.pids.items():
                    watcher.add(label, pid)
                measured, usage = _with_replicas(
                    system, services.address, scenario, progress_path, trainer, watcher
                )
                trainer.process.join(STOP_TIMEOUT_S)
    return _round(measured, usage)


@contextmanager
def _with_logs_in_errors(folder: Path) -> Iterator[None]:
    """Adds the end of each service's log to the error, because the folder is removed."""
    try:
        yield
    except RoundFailed as error:
        for log in sorted(folder.glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
            error.add_note("\n".join([f"the end of {log.name}:", *lines]))
        raise


def _with_replicas(
    system: System,
    address: str,
    scenario: Scenario,
    progress_path: Path,
    trainer: Child,
    watcher: Watcher,
) -> tuple[Measured, Usage]:
    with _all_replicas(system, address, scenario, progress_path) as replicas:
        for replica in replicas:
            watcher.add("producer", replica.receive(START_TIMEOUT_S))
        watcher.start()
        for child in (trainer, *replicas):
            child.pipe.send("go")
        measured = trainer.receive_while(replicas)
        for replica in replicas:
            replica.receive(STOP_TIMEOUT_S)
        usage = watcher.stop()
        for replica in replicas:
            replica.process.join(STOP_TIMEOUT_S)
    assert isinstance(measured, Measured)
    return measured, usage


def _round(measured: Measured, usage: Usage) -> Round:
    return Round(
        rollouts_per_s=measured.rollouts / measured.seconds,
        latencies_ms=measured.latencies_ms,
        peak_rss_mib=dict(usage.peak_rss_mib),
        cpu_us_per_rollout={
            label: 1e6 * seconds / measured.rollouts for label, seconds in usage.cpu_s.items()
        },
    )


@dataclass
class Child:
    """A process, and our end of the pipe to it."""

    process: SpawnProcess
    pipe: Connection

    def receive(self, timeout_s: float) -> Any:
        """Returns the next object that it sends."""
        try:
            if self.pipe.poll(timeout_s):
                return self.pipe.recv()
        except EOFError:
            self.process.join(STOP_TIMEOUT_S)
            code = self.process.exitcode
            raise RoundFailed(f"{self.process.name} ended early with exit code {code}") from None
        raise RoundFailed(f"{self.process.name} sent nothing within {timeout_s} s")

    def receive_while(self, others: list[Child]) -> Any:
        """Returns the next object that it sends; raises at once where one of the others fails."""
        waited_s = 0.0
        while not self.pipe.poll(1.0):
            waited_s += 1.0
            broken = [child.process.name for child in others if child.process.exitcode]
            if broken:
                raise RoundFailed(f"{', '.join(broken)} failed; the traceback is above")
            if waited_s > 10 * TAKE_TIMEOUT_S:
                raise RoundFailed(f"{self.process.name} did not finish in {waited_s} s")
        return self.receive(0)


@contextmanager
def child(name: str, run: Any, arguments: tuple[Any, ...]) -> Iterator[Child]:
    """Runs a process, which is killed in the end where it still runs."""
    ours, theirs = _spawn.Pipe()
    process = _spawn.Process(target=run, args=(*arguments, theirs), name=name)
    process.start()
    theirs.close()
    try:
        yield Child(process, ours)
    finally:
        if process.is_alive():
            process.kill()
        process.join()
        process.close()
        ours.close()


@contextmanager
def _all_replicas(
    system: System, address: str, scenario: Scenario, progress_path: Path
) -> Iterator[list[Child]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                child(
                    f"replica-{replica}",
                    run_replica,
                    (system, address, replica, scenario, progress_path),
                )
            )
            for replica in range(scenario.processes)
        ]
