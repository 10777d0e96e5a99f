"""What can go wrong in the demo's own policy and tasks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rollstream.schemas.errors import RollstreamError


class DemoError(RollstreamError):
    """The demo could not do what was asked."""


class FolderNotOurs(DemoError):
    """The demo empties its folder, and this one holds what no demo wrote."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"{folder} holds files that no demo wrote, and the demo would empty it: "
            "name another with --folder, or remove it yourself"
        )
        self.folder = folder


class UnknownTask(DemoError):
    """A task was named that the demo's tokens and policy were not made for."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(
            f"no demo task is called {name!r}: choose among {', '.join(sorted(known))}"
        )
        self.name = name


class TooFewProblems(DemoError):
    """A task has fewer distinct problems than were asked for."""

    def __init__(self, name: str, found: int, wanted: int) -> None:
        super().__init__(
            f"the task {name!r} gave {found} distinct problems, {wanted} were asked for: "
            "ask for fewer"
        )
        self.name = name


class PromptDoesNotFit(DemoError):
    """A prompt has more tokens than the policy reads, or a token that is not in the vocabulary."""


class WeightsDoNotFit(DemoError):
    """Bytes that are not weights of this policy."""

    def __init__(self, size_bytes: int, expected_bytes: int) -> None:
        super().__init__(
            f"{size_bytes} bytes are no weights of this policy, which has {expected_bytes}: "
            "start the run anew, so that trainer and replicas share one release"
        )
        self.size_bytes = size_bytes


class BatchDoesNotFit(DemoError):
    """A batch holds tokens that this policy cannot have written, or nothing to learn from."""
