"""The run's processes, each started anew as soon as it ends."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos.phases import Process, read_phase, state_of
from chaos.settings import DRAIN_S, PRODUCERS, RATE, SEALERS, VERIFIERS
from rollstream.console.broker.child import BoundChild
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.deadline import Deadline

LOOK_EVERY_S = 0.02
# Many processes share few cores; a pool of threads in each would only make them wait. SIGABRT
# writes each thread's stack.
SURROUNDINGS = ("OPENBLAS_NUM_THREADS=1", "OMP_NUM_THREADS=1", "PYTHONFAULTHANDLER=1")
LAST_WORDS_S = 10.0
LAST_LINES = 60


@dataclass
class Member:
    """One process and its successors.

    Attributes:
        ended: how those ended that nobody killed, and what they said last.
    """

    name: str
    arguments: Sequence[str]
    phases: Path | None = None
    child: BoundChild | None = None
    starts: int = 0
    ended: list[str] = field(default_factory=list)


class Fleet:
    """Keeps its members alive until ``stop``."""

    def __init__(self, folder: Path, members: Sequence[Member]) -> None:
        self._folder = folder
        self._members = {member.name: member for member in members}
        self._left: list[str] = []
        self._stopping = threading.Event()
        self._watch = threading.Thread(target=self._keep_alive, name="fleet", daemon=True)

    @property
    def unexpected(self) -> list[str]:
        """Ends of processes that nobody killed."""
        return [*self._left, *(end for m in self._members.values() for end in m.ended)]

    def start(self) -> None:
        for member in self._members.values():
            self._begin(member)
        self._watch.start()

    def names(self, kind: str) -> list[str]:
        """Of the members whose names begin so."""
        return [name for name in self._members if name.startswith(kind)]

    def phases(self, name: str) -> Path | None:
        """The file that shows what it is at; None: it shows nothing."""
        return self._members[name].phases

    def process(self, name: str) -> Process:
        """The process, and what it is at."""
        member = self._members[name]
        assert member.child is not None
        found = None if member.phases is None else read_phase(member.phases)
        if found is not None and found.pid == member.child.pid:
            return found
        return Process(member.child.pid, "starting" if member.phases else "")

    def stop(self, kind: str) -> None:
        """SIGTERM to the members of this kind, once they handle it; each has to leave by itself."""
        deadline = Deadline(DRAIN_S)
        while not deadline.passed() and any(map(self._starting, self.names(kind))):
            deadline.wait(LOOK_EVERY_S)
        members = [self._members.pop(name) for name in self.names(kind)]
        for member in members:
            assert member.child is not None
            member.child.signal(signal.SIGTERM)
        for member in members:
            assert member.child is not None
            code = member.child.wait(DRAIN_S)
            if code is None:
                member.ended.append(f"{member.name} did not leave: {self._last_words(member)}")
            elif code not in (0, -signal.SIGKILL):  # The last hit may have been its end.
                member.ended.append(f"{member.name} left with {code}: {self._said(member)}")
            self._left += member.ended

    def close(self) -> None:
        """Whatever state they are in."""
        self._stopping.set()
        if self._watch.is_alive():
            self._watch.join()
        for member in self._members.values():
            if member.child is not None:
                member.child.signal(signal.SIGKILL)

    def _starting(self, name: str) -> bool:
        return self.process(name).phase == "starting"

    def _begin(self, member: Member) -> None:
        member.starts += 1
        command = ["/usr/bin/env", *SURROUNDINGS, sys.executable, *member.arguments]
        member.child = BoundChild(command, cwd=self._folder, output=self._log(member))

    def _log(self, member: Member) -> Path:
        return self._folder / f"{member.name}.{member.starts}.log"

    def _last_words(self, member: Member) -> str:
        """What a process that does not leave is at."""
        assert member.child is not None
        state = state_of(member.child.pid)
        for number in (signal.SIGABRT, signal.SIGCONT):
            member.child.signal(number)
        member.child.wait(LAST_WORDS_S)
        member.child.signal(signal.SIGKILL)
        return f"it was {state}; {self._said(member)}"

    def _said(self, member: Member) -> str:
        """The end of what it printed: the file itself may be gone with the machine."""
        said = self._log(member).read_text(errors="replace").splitlines()[-LAST_LINES:]
        return "\n".join((f"see {self._log(member)}", *said))

    def _keep_alive(self) -> None:
        clock = SystemClock()
        while not clock.wait(self._stopping, LOOK_EVERY_S):
            for member in list(self._members.values()):
                assert member.child is not None
                code = member.child.wait(0)
                if code is None or member.name not in self._members:
                    continue
                if code != -signal.SIGKILL:
                    member.ended.append(f"{member.name} ended with {code}: {self._said(member)}")
                self._begin(member)


def members(folder: Path, bootstrap: str) -> list[Member]:
    """Producers, sealers, verifiers and the trainer."""
    config = str(folder / "rollstream.toml")
    fleet = []
    for number in range(PRODUCERS):
        name = f"producer-{number}"
        options = ["--bootstrap", bootstrap, "--name", name]
        options += ["--rate", str(RATE / PRODUCERS), "--journal", str(folder / f"{name}.journal")]
        fleet.append(Member(name, ["-m", "chaos.producing", *options]))
    for kind, module, count in (
        ("sealer", "chaos.sealing", SEALERS),
        ("verifier", "chaos.scoring", VERIFIERS),
    ):
        for number in range(count):
            phases = folder / f"{kind}-{number}.phases"
            fleet.append(Member(f"{kind}-{number}", ["-m", module, config, str(phases)], phases))
    phases = folder / "trainer.phases"
    options = ["--config", config, "--phases", str(phases)]
    options += ["--journal", str(folder / "trainer.journal")]
    options += ["--actor-phases", str(folder / "sampler.phases")]
    fleet.append(Member("trainer", ["-m", "chaos.training", *options], phases))
    return fleet
