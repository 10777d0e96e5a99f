"""Whether a store's root knows of more than a log holds: what it was written after is then gone."""

from __future__ import annotations

from contextlib import closing
from typing import Protocol

from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import EARLIEST, Broker, TopicPartition
from rollstream.streams.reading import bounds_in_time

WHERE_TO_READ = 'docs/operating/kafka.md, "Kafka\'s disk is lost", says how to go on'
REMEDY = (
    "restore the log, or correct store.root; `rollstream without-logs` says what files know of it, "
    "and a run that is to begin anew takes a section [samplers.*] of another name; " + WHERE_TO_READ
)


class Hint(Protocol):
    """Where a root keeps how far a log was read, and what came of it. What fails is logged."""

    def read(self) -> bytes:
        """Empty: there is none, or it cannot be read."""

    def write(self, data: bytes) -> None:
        """Replaces it."""


class Followed(Protocol):
    """What a root holds that was written after an event of a log was confirmed."""

    def decisions(self, sampler: str, log: str, kind: str) -> Hint:
        """The hint of a sampler's decision log, for readers of this kind."""

    def has_manifests(self, environment: str, generation: int) -> bool:
        """Whether it holds a manifest of a flush of the environment."""

    def newest_batch(self, sampler: str) -> tuple[int, int] | None:
        """Trainer epoch and step of a sampler's newest batch file; None: there is none."""


def lost_batch(
    log: TopicPartition, written: tuple[int, int] | None, decided: tuple[int, int]
) -> str:
    """What is wrong where a decision log does not hold the newest batch that was written, and what
    to do; empty: nothing is. Pure.

    Args:
        written: trainer epoch and step, asked of the root before the log was read.
        decided: trainer epoch and next step, by the log.
    """
    if written is None or written < decided:
        return ""
    return (
        f"{log} ends before step {decided[1]} of trainer epoch {decided[0]}, but the store's root "
        f"holds a batch of step {written[1]} of trainer epoch {written[0]}: the log was lost or "
        f"cut back, or is another sampler's. Nothing is decided anew: {REMEDY}"
    )


def is_empty(broker: Broker, where: TopicPartition, deadline: Deadline) -> bool:
    """Whether nothing was ever written to a log.

    Raises:
        BrokerUnavailable: not answered in time.
    """
    with closing(broker.reader({where: EARLIEST})) as reader:
        return bounds_in_time(reader, where, deadline)[1] == 0
