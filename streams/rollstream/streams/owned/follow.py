"""Everybody else's side of owned logs: the events that count, in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rollstream.schemas.events import Event
from rollstream.streams.broker import Broker, TopicPartition


class Heard(NamedTuple):
    """An event that counts, and where it stands."""

    where: TopicPartition
    offset: int
    timestamp_us: int
    event: Event


class Follower:
    """Reads owned partitions and hands out only what the fence admits.

    Within a partition in the order of offsets; between partitions in the order of arrival. Starts
    must be 0 (or EARLIEST) or the offset of a claim.
    """

    def __init__(self, broker: Broker, starts: Mapping[TopicPartition, int]) -> None: ...

    def poll(self, records_max: int, timeout_s: float) -> list[Heard]:
        """The next events that count; events that do not are consumed and left out.

        Raises:
            UnreadableEvent: bytes in an owned log that are no event: a defect, never skipped.
        """
        raise NotImplementedError

    def next_offsets(self) -> dict[TopicPartition, int]:
        """Per partition the offset behind the newest record seen, admitted or not."""
        raise NotImplementedError

    def catch_up(self, timeout_s: float) -> list[Heard]:
        """Everything up to the ends as they stand at the call.

        Raises:
            BrokerUnavailable: not reached within ``timeout_s``.
        """
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
