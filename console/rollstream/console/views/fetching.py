"""Shows the progress of the embedded Kafka's start: counts as a bar, other messages as lines."""

from __future__ import annotations

import re
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

_COUNTED = re.compile(r"(?P<what>.*): (?P<done>\d+) of (?P<total>\d+) (?P<unit>\w+)")


class Fetching:
    """A context manager to pass as ``on_progress`` of ``EmbeddedKafka``."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            console=console,
        )
        self._task: TaskID | None = None

    def __call__(self, line: str) -> None:
        counted = _COUNTED.fullmatch(line)
        if counted is None:
            self._progress.console.print(line, highlight=False, markup=False)
            return
        if self._task is None:
            self._task = self._progress.add_task(counted["what"], unit=counted["unit"])
        self._progress.update(
            self._task, completed=int(counted["done"]), total=int(counted["total"])
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()
