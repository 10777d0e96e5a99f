"""Kills one process of each kind with -9 while the policy learns."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from examples.demo.fleet import Fleet
from examples.demo.tasks import TASK_NAMES

# Steps at which one dies: before the run may end, so that all have died and work goes on.
SEALER_AT, ACTOR_AT, REPLICA_AT, VERIFIER_AT = 30, 60, 90, 110


class Chaos:
    """Call it before each step."""

    def __init__(
        self, fleet: Fleet, actor_pid: Callable[[], int], mark: Callable[[int, str], None]
    ) -> None:
        self._fleet = fleet
        self._actor_pid = actor_pid
        self._mark = mark
        self.killed: list[str] = []

    def before_step(self, step: int) -> None:
        if step == SEALER_AT:
            self._record(step, "sealer-0", self._fleet.kill("sealer-0"))
        elif step == ACTOR_AT:
            pid = self._actor_pid()
            os.kill(pid, signal.SIGKILL)
            self._record(step, "sampler actor", pid)
        elif step == REPLICA_AT:
            name = f"{TASK_NAMES[0]}-0"
            self._record(step, name, self._fleet.kill(name))
        elif step == VERIFIER_AT:
            self._record(step, "verifier", self._fleet.kill("verifier"))

    def _record(self, step: int, name: str, pid: int) -> None:
        self.killed.append(f"{name} (process {pid}) before step {step}")
        self._mark(step, f"kill -9 {name}")
