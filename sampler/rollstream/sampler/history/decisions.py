"""A decision log, read by who does not own it."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from typing import SupportsIndex

from rollstream.runtime.config.sections import KafkaConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler.arguments import whole_number
from rollstream.sampler.errors import UnknownSampler, UnknownStep
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.errors import UnknownTopic
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.owned.follow import ConfirmedEvent, Follower, PutAside
from rollstream.streams.topics.layout import Layout


@contextmanager
def connected(kafka: KafkaConfig, broker: Broker | None) -> Iterator[Broker]:
    """The broker that was given, which stays open, else the configured one."""
    with nullcontext(broker) if broker else KafkaBroker(kafka.bootstrap, kafka.client) as used:
        yield used


def asked_step(step: SupportsIndex, trainer_epoch: SupportsIndex | None) -> tuple[int, int | None]:
    """Both as whole numbers; raises ``InvalidRequest``."""
    epoch = None if trainer_epoch is None else whole_number("trainer_epoch", trainer_epoch)
    return whole_number("step", step), epoch


def no_batch(name: str, step: int, trainer_epoch: int | None) -> UnknownStep:
    """What is raised where the log has no decision for what was asked."""
    of = "" if trainer_epoch is None else f" of trainer epoch {trainer_epoch}"
    return UnknownStep(f"the log of sampler {name!r} has no batch for step {step}{of}")


def read_logs(
    broker: Broker,
    logs: Iterable[TopicPartition],
    deadline: Deadline,
    *,
    scores: Collection[TopicPartition] = (),
    needed: Mapping[TopicPartition, int] | None = None,
) -> Generator[ConfirmedEvent, None, None]:
    """Yields the events that count, up to the logs' ends; ``BrokerUnavailable``: not read in time.

    Args:
        needed: of each log, the offset below which all must be read. A log that cannot be read on
            behind it ends there. None: each must be read to its end.

    Raises:
        BrokerUnavailable: not read in time. UnreadableLog: a log cannot be read as far as needed.
    """
    aside: dict[TopicPartition, PutAside] | None = None if needed is None else {}
    with closing(Follower(broker, dict.fromkeys(logs, 0), scores, aside=aside)) as follower:
        yield from follower.read_to_end(deadline)
    for where, one in (aside or {}).items():
        if needed is not None and one.offset < needed[where]:
            raise one.error


def read_decisions(
    broker: Broker, layout: Layout, name: str, deadline: Deadline
) -> Generator[ConfirmedEvent, None, None]:
    """Yields the events that count, up to the log's end.

    Raises:
        UnknownSampler: there is no decision log of that name. BrokerUnavailable: not read in time.
    """
    log = layout.sampler_log(name)
    try:
        yield from read_logs(broker, [log], deadline)
    except UnknownTopic as error:
        raise UnknownSampler(
            f"there is no decision log of a sampler {name!r} ({log.topic}); correct the name, "
            "kafka.namespace or kafka.generation"
        ) from error
