"""What a system under measurement looks like to the benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.workload import Rollout, Workload

START_TIMEOUT_S = 60.0
TAKE_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Packed:
    """A batch's arrays; rollout i is ``tokens[offsets[i]:offsets[i + 1]]``, prompt first."""

    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]
    prompt_lengths: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    rewards: NDArray[np.float32]
    group_index: NDArray[np.int32]


@dataclass(frozen=True)
class Taken:
    """What one ``take`` brought; ``packed`` is None where bytes are all that is moved."""

    uids: Sequence[str | bytes]
    packed: Packed | None


class Publisher(Protocol):
    """In an env replica's process."""

    def publish(self, rollout: Rollout) -> None:
        """May buffer."""

    def idle(self) -> None:
        """The replica waits for the trainer: nothing may stay behind in a buffer for long."""

    def close(self) -> None:
        """Returns once everything has arrived."""


class Source(Protocol):
    """In the trainer's process."""

    def take(self) -> Taken:
        """The next batch; every rollout at most once in all batches together.

        Raises:
            TimeoutError: nothing came within ``TAKE_TIMEOUT_S``.
        """

    def pids(self) -> Mapping[str, int]:
        """Processes that it started or found, to be measured, by label."""

    def close(self) -> None: ...


@dataclass
class Services:
    """What runs beside replicas and trainer."""

    address: str
    pids: dict[str, int] = field(default_factory=dict)


class System(Protocol):
    """One way from env replicas to a trainer. Travels to the processes of a round, so it holds
    nothing but settings."""

    @property
    def name(self) -> str: ...

    def missing(self) -> str | None:
        """Why it cannot be measured on this machine."""

    def services(self, folder: Path) -> AbstractContextManager[Services]:
        """Fresh brokers, servers and workers for one round; files go in ``folder``."""

    def publisher(self, address: str, replica: int, workload: Workload) -> Publisher: ...

    def source(self, address: str) -> Source: ...
