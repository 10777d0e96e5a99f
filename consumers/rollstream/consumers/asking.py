"""Asks the owners of seal logs for something, and reads what they answer."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from rollstream.consumers.delivering import Outgoing, deliver_all, writing
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas import codec
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.events import Requested, RequestKind, Retired
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.owned.adoption import find_starts
from rollstream.streams.owned.follow import ConfirmedEvent, Follower, PutAside
from rollstream.streams.topics.layout import Layout

FOLLOW_SLICE_S = 0.2
RECORDS_MAX = 256


class UnknownEnvironment(RollstreamError, ValueError):
    """The configuration has no such environment."""


class UnknownPartition(RollstreamError, ValueError):
    """The configuration has no such partition."""


def addresses_of(
    config: RollstreamConfig, environments: Sequence[str]
) -> dict[str, list[PartitionAddress]]:
    """The partitions of these environments, none: of all that are configured, by name.

    Raises:
        UnknownEnvironment: the configuration has no such environment.
    """
    layout = Layout.of(config.kafka)
    for name in environments:
        if name not in config.environments:
            known = ", ".join(sorted(config.environments))
            raise UnknownEnvironment(
                f"there is no [environments.{name}] in this configuration, which has {known}"
            )
    return {
        name: layout.addresses({name: config.environments[name].partitions})
        for name in sorted({*environments} or config.environments)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerAnswer:
    """What the owner of a partition answered.

    Attributes:
        answered: False: nobody did in time; the request stands, and is carried out once a sealer
            owns the partition.
        detail: what the owner says beside what it did, or why nobody answers; else empty.
        refused: whether the owner did nothing, or not all.
    """

    environment: str
    partition: int
    answered: bool
    detail: str
    refused: bool


class Answer:
    """What the owner of a seal log answered so far.

    Attributes:
        request: offset of the request.
        events: the answer, in one or more parts.
        aside: why the log cannot be read on, so that nobody answers; empty: it can.
    """

    def __init__(self, request: int) -> None:
        self.request = request
        self.events: list[Retired] = []
        self.aside = ""

    @property
    def answered(self) -> bool:
        """Whether all of it is there."""
        return bool(self.events) and not self.events[-1].more

    def told(self, address: PartitionAddress) -> dict[str, Any]:
        """Returns the fields of an ``OwnerAnswer``."""
        return {
            "environment": address.environment,
            "partition": address.partition,
            "answered": self.answered,
            "detail": self.aside or " ".join(one.detail for one in self.events if one.detail),
            "refused": any(one.refused for one in self.events),
        }


def ask(
    broker: Broker,
    logs: Sequence[TopicPartition],
    kind: RequestKind,
    deadline: Deadline,
    *,
    staged: Mapping[TopicPartition, str] = MappingProxyType({}),
    compression: str = "",
    see: Callable[[ConfirmedEvent, Answer], object] = lambda event, answer: None,
    **limits: Any,
) -> dict[TopicPartition, Answer]:
    """Appends a request to each log, and returns the answers that came by the deadline.

    Args:
        staged, compression: as ``Requested`` has them.
        see: given each event of a log from some before the newest claim up to the answer, which is
            as it was before that event.
        limits: of a request to retire files, by field.

    Raises:
        BrokerUnavailable: not every request was written in time, or the logs were not read.
    """
    request = Requested(
        kind=kind,
        requested_by=f"{getpass.getuser()}@{socket.gethostname()}",
        requested_ts=deadline.clock.now_us(),
        compression=compression,
        **{"older_than_us": 0, **limits},
    )
    requests = [
        Outgoing(where, codec.encode(replace(request, staged=staged.get(where, ""))))
        for where in logs
    ]
    with writing(broker) as writer:
        asked = deliver_all(writer, requests, deadline)
    answers = {where: Answer(offset) for where, offset in zip(logs, asked, strict=True)}
    aside: dict[TopicPartition, PutAside] = {}
    starts = find_starts(broker, dict.fromkeys(logs), deadline)
    with closing(Follower(broker, starts, aside=aside)) as follower:
        while not (
            deadline.passed() or all(one.answered or at in aside for at, one in answers.items())
        ):
            deadline.log_waiting(lambda: "the owners of the partitions to answer")
            for event in follower.poll(RECORDS_MAX, deadline.slice_s(FOLLOW_SLICE_S)):
                answer = answers[event.where]
                if answer.answered:
                    continue
                see(event, answer)
                if isinstance(event.event, Retired) and event.event.request == answer.request:
                    answer.events.append(event.event)
    for where, error in aside.items():
        answers[where].aside = str(error.error)
    return answers
