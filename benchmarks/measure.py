"""Peak memory and processor time of a round's processes, by label."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import psutil

from benchmarks.progress import DRAINING, MEASURING, Progress

EVERY_S = 0.1
MIB = 1024 * 1024


@dataclass(frozen=True)
class Usage:
    """The usage of one round.

    Attributes:
        peak_rss_mib: the largest resident memory of any process with that label.
        cpu_s: processor time while measuring, all processes with that label together.
    """

    peak_rss_mib: Mapping[str, float]
    cpu_s: Mapping[str, float]


@dataclass
class _Watched:
    label: str
    process: psutil.Process
    cpu_s: dict[int, float] = field(default_factory=dict)


class Watcher:
    """Samples the processes ten times a second until ``stop``."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._watched: list[_Watched] = []
        self._peaks: dict[str, float] = defaultdict(float)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)

    def add(self, label: str, pid: int) -> None:
        """Adds a process to sample; several may share a label."""
        self._watched = [*self._watched, _Watched(label, psutil.Process(pid))]

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> Usage:
        self._stopping.set()
        self._thread.join()
        cpu_s: dict[str, float] = defaultdict(float)
        for watched in self._watched:
            before = watched.cpu_s.get(MEASURING)
            after = watched.cpu_s.get(DRAINING)
            if before is not None and after is not None:
                cpu_s[watched.label] += after - before
        return Usage(dict(self._peaks), dict(cpu_s))

    def _watch(self) -> None:
        while not self._stopping.wait(EVERY_S):
            phase = self._progress.phase
            for watched in self._watched:
                try:
                    self._sample(watched, phase)
                except psutil.NoSuchProcess:
                    continue

    def _sample(self, watched: _Watched, phase: int) -> None:
        rss = watched.process.memory_info().rss / MIB
        self._peaks[watched.label] = max(self._peaks[watched.label], rss)
        if phase not in watched.cpu_s:
            times = watched.process.cpu_times()
            watched.cpu_s[phase] = times.user + times.system
