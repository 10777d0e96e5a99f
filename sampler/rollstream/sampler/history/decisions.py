"""A decision log, read by who does not own it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, nullcontext

from rollstream.runtime.config.sections import KafkaConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler.errors import UnknownSampler
from rollstream.streams.broker import Broker
from rollstream.streams.errors import UnknownTopic
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.owned.follow import ConfirmedEvent, Follower
from rollstream.streams.topics.layout import Layout


@contextmanager
def connected(kafka: KafkaConfig, broker: Broker | None) -> Iterator[Broker]:
    """The broker that was given, which stays open, else the configured one."""
    with nullcontext(broker) if broker else KafkaBroker(kafka.bootstrap, kafka.client) as used:
        yield used


def read_decisions(
    broker: Broker, layout: Layout, name: str, deadline: Deadline
) -> Generator[ConfirmedEvent, None, None]:
    """Yields the events that count, up to the log's end.

    Raises:
        UnknownSampler: there is no decision log of that name. BrokerUnavailable: not read in time.
    """
    log = layout.sampler_log(name)
    with closing(Follower(broker, {log: 0})) as follower:
        try:
            yield from follower.read_to_end(deadline)
        except UnknownTopic as error:
            raise UnknownSampler(
                f"there is no decision log of a sampler {name!r} ({log.topic}); correct the name, "
                "kafka.namespace or kafka.generation"
            ) from error
