"""The interface of a system under measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.scenarios import Scenario
from benchmarks.workload import Rollout, Workload

START_TIMEOUT_S = 60.0
TAKE_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Packed:
    """A batch's arrays; rollout i is ``tokens[offsets[i]:offsets[i + 1]]``, prompt first.

    Attributes:
        token_arrays: those that the scenario asks for, [total, …]; 0 at prompts.
    """

    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]
    prompt_lengths: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    rewards: NDArray[np.float32]
    group_index: NDArray[np.int32]
    token_arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Taken:
    """The result of one ``take``; ``packed`` is None where a system only moves bytes."""

    uids: Sequence[str | bytes]
    packed: Packed | None


class Publisher(Protocol):
    """Sends rollouts, in an env replica's process."""

    def publish(self, rollout: Rollout) -> None:
        """Sends the rollout, now or later from a buffer."""

    def idle(self) -> None:
        """Called while the replica waits for the trainer: sends what is buffered."""

    def close(self) -> None:
        """Returns once everything has arrived."""


class Source(Protocol):
    """Takes batches, in the trainer's process."""

    def take(self) -> Taken:
        """Returns the next batch; a rollout is in one batch at most.

        Raises:
            TimeoutError: nothing came within ``TAKE_TIMEOUT_S``.
        """

    def pids(self) -> Mapping[str, int]:
        """Processes to measure that it started or found, by label."""

    def close(self) -> None: ...


@dataclass
class Services:
    """The address of a round's services, and their processes by label."""

    address: str
    pids: dict[str, int] = field(default_factory=dict)


class System(Protocol):
    """One way from env replicas to a trainer. It holds only settings, because it is pickled to the
    processes of a round."""

    @property
    def name(self) -> str: ...

    def missing(self) -> str | None:
        """Why it cannot be measured on this machine; None where it can."""

    def services(self, folder: Path, scenario: Scenario) -> AbstractContextManager[Services]:
        """Starts brokers, servers and workers for one round, with their files in ``folder``."""

    def publisher(self, address: str, number: int, workload: Workload) -> Publisher: ...

    def source(self, address: str, workload: Workload) -> Source: ...
