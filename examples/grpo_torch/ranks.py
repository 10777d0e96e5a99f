"""Starts the ranks as processes, and all of them again when one was killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from examples.grpo_torch import settings
from examples.grpo_torch.errors import PEER_LOST, GrpoError
from rollstream.console.broker.child import BoundChild
from rollstream.runtime.clock import Clock
from rollstream.runtime.deadline import Deadline

_CLONE = Path(__file__).parents[2]
_LOOK_EVERY_S = 0.2
_STARTS_MAX = 3  # Ranks that are lost more often than this are broken, not unlucky.
# What a start may end with that is worth another one.
_LOST = frozenset({PEER_LOST, -signal.SIGKILL})
# gloo would listen on whatever the host's name stands for; ranks share two cores with others.
_ENVIRONMENT = ("GLOO_SOCKET_IFNAME=lo", "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1")


@dataclass
class Ranks:
    """The trainer's processes.

    Attributes:
        folder: of checkpoint, weights, records and logs.
        report: called with a sentence when ranks are lost.
        look: called while they train; may raise, which ends them.
    """

    config: Path
    folder: Path
    seed: int
    steps: int
    clock: Clock
    report: Callable[[str], None]
    look: Callable[[], None]
    starts: int = field(default=0, init=False)

    def train(self, *, kill_at: int | None = None) -> None:
        """Until every step was taken. ``kill_at``: the last rank gets kill -9 in the middle of it.

        Raises:
            GrpoError: a rank failed for another reason than a lost peer, or hangs.
        """
        (self.folder / "weights").mkdir(parents=True, exist_ok=True)
        while True:
            self.starts += 1
            codes = self._end_of(self._start(kill_at if self.starts == 1 else None))
            if not any(codes):
                return
            said = [self._last_line(rank) for rank, code in enumerate(codes) if code]
            if not _LOST.issuperset(filter(None, codes)) or self.starts == _STARTS_MAX:
                raise GrpoError(f"ranks ended with {codes}: {'; '.join(said)}; see {self.folder}")
            self.report(f"ranks ended with {codes}: {'; '.join(filter(None, said))}")

    def _start(self, kill_at: int | None) -> list[BoundChild]:
        path = os.pathsep.join(filter(None, [str(_CLONE), os.environ.get("PYTHONPATH", "")]))
        children = []
        for rank in range(settings.RANKS):
            arguments = {
                "config": self.config,
                "folder": self.folder,
                "meeting-point": self.folder / f"meeting-{self.starts}",
                "rank": rank,
                "steps": self.steps,
                "seed": self.seed,
            }
            if kill_at is not None and rank == settings.RANKS - 1:
                arguments["die-at"] = kill_at
            flags = [str(part) for name, v in arguments.items() for part in (f"--{name}", v)]
            command = ["/usr/bin/env", *_ENVIRONMENT, f"PYTHONPATH={path}", sys.executable]
            command += ["-m", "examples.grpo_torch.rank", *flags]
            children.append(BoundChild(command, cwd=self.folder, output=self._log(rank)))
        return children

    def _end_of(self, children: list[BoundChild]) -> list[int]:
        """Their exit codes. Once one ended, the others must within a peer's deadline."""
        try:
            deadline: Deadline | None = None
            while None in (codes := [child.wait(0) for child in children]):
                self.look()
                if deadline is None and any(code is not None for code in codes):
                    deadline = Deadline(2 * settings.PEER_TIMEOUT_S, self.clock)
                if deadline is not None and deadline.passed():
                    raise GrpoError(f"a rank ended, others hang ({codes}); see {self.folder}")
                self.clock.wait(threading.Event(), _LOOK_EVERY_S)
            return [code for code in codes if code is not None]
        finally:
            for child in children:
                if child.wait(0) is None:
                    child.signal(signal.SIGKILL)

    def _log(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.{self.starts}.log"

    def _last_line(self, rank: int) -> str:
        lines = self._log(rank).read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""
