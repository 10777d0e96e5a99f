"""Shows the progress of the embedded Kafka's start: counts as a bar, other messages as lines."""

from __future__ import annotations

import re

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

_COUNTED = re.compile(r"(?P<what>.*): (?P<done>\d+) of (?P<total>\d+) (?P<unit>\w+)")


class Fetching(Progress):
    """A context manager to pass as ``on_progress`` of ``EmbeddedKafka``."""

    def __init__(self, console: Console) -> None:
        unit = TextColumn("{task.fields[unit]}")
        description = TextColumn("{task.description}")
        super().__init__(description, BarColumn(), MofNCompleteColumn(), unit, console=console)
        self._bar: TaskID | None = None

    def __call__(self, line: str) -> None:
        counted = _COUNTED.fullmatch(line)
        if counted is None:
            self.console.print(line, highlight=False, markup=False)
            return
        if self._bar is None:
            self._bar = self.add_task(counted["what"], unit=counted["unit"])
        self.update(self._bar, completed=int(counted["done"]), total=int(counted["total"]))
