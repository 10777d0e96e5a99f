"""The demo's processes: sealers, env replicas and a verifier, started anew when one ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from examples.demo import settings
from examples.demo.errors import DemoError
from examples.demo.tasks import TASK_NAMES
from rollstream.console.broker.child import BoundChild
from rollstream.runtime.clock import Clock

_LOOK_EVERY_S = 0.2
_STOP_TIMEOUT_S = 20.0
_RESTARTS_MAX = 5  # A process that ends more often than this is broken, not unlucky.
# Ten processes share two cores; a pool of threads in each would only make them wait for each other.
_ONE_THREAD = ("OPENBLAS_NUM_THREADS=1", "OMP_NUM_THREADS=1", "MKL_NUM_THREADS=1")
# Members run in a folder of their own; this package is imported from the clone.
_CLONE = str(Path(__file__).parents[2])


@dataclass
class Member:
    """One process and its successors."""

    name: str
    arguments: Sequence[str]
    starts: int = 0
    child: BoundChild | None = None
    pids: list[int] = field(default_factory=list)


class Fleet:
    """Keeps the processes alive until told to stop; none outlives this one."""

    def __init__(
        self,
        folder: Path,
        members: Sequence[Member],
        *,
        report: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._folder = folder
        self._members = {member.name: member for member in members}
        self._report = report
        self._clock = clock
        path = [_CLONE, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        self._import_path = f"PYTHONPATH={os.pathsep.join(filter(None, path))}"
        self._stopping = threading.Event()
        self._watch = threading.Thread(target=self._keep_alive, name="fleet", daemon=True)
        self.broken: str | None = None

    def start(self) -> None:
        for member in self._members.values():
            self._begin(member)
        self._watch.start()

    def kill(self, name: str) -> int:
        """Kill -9; a successor is started. The id of the process that died."""
        child = self._members[name].child
        assert child is not None
        child.signal(signal.SIGKILL)
        return child.pid

    def check(self) -> None:
        """Raises DemoError when a process cannot be kept alive."""
        if self.broken is not None:
            raise DemoError(self.broken)

    def stop(self) -> None:
        """SIGTERM to all, and by force what has not ended in time."""
        self._stopping.set()
        self._watch.join()
        children = [m.child for m in self._members.values() if m.child is not None]
        for child in children:
            child.signal(signal.SIGTERM)
        for child in children:
            if child.wait(_STOP_TIMEOUT_S) is None:
                child.signal(signal.SIGKILL)

    def _begin(self, member: Member) -> None:
        member.starts += 1
        log = self._folder / f"{member.name}.{member.starts}.log"
        command = [
            "/usr/bin/env",
            *_ONE_THREAD,
            self._import_path,
            sys.executable,
            *member.arguments,
        ]
        member.child = BoundChild(command, cwd=self._folder, output=log)
        member.pids.append(member.child.pid)

    def _keep_alive(self) -> None:
        while not self._clock.wait(self._stopping, _LOOK_EVERY_S):
            for member in self._members.values():
                assert member.child is not None
                code = member.child.wait(0)
                if code is None:
                    continue
                log = self._folder / f"{member.name}.{member.starts}.log"
                if member.starts > _RESTARTS_MAX:
                    self.broken = f"{member.name} ended {member.starts} times; see {log}"
                    return
                self._report(f"{member.name} ended ({code}); another one takes its place")
                self._begin(member)


def members(bootstrap: str, config: Path) -> list[Member]:
    """Two sealers, two env replicas for each task, and a verifier for one of them."""
    seal = ["-m", "rollstream.console.entry", "seal", "--config", str(config)]
    fleet = [Member(f"sealer-{i}", seal) for i in range(settings.SEALERS)]
    for task in TASK_NAMES:
        for i in range(settings.REPLICAS_PER_TASK):
            name = f"{task}-{i}"
            arguments = ["--bootstrap", bootstrap, "--task", task, "--replica", name]
            if i == 0:
                arguments.append("--evaluates")
            module = ["-m", "examples.demo.replica"]
            fleet.append(Member(name, [*module, *arguments]))
    verify = ["-m", "examples.demo.verifier", "--config", str(config)]
    return [*fleet, Member("verifier", verify)]
