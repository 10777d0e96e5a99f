"""The SDK of env workers: publishes rollouts, and says which ones did not arrive.

Map, a line a file:

- ``client``       ``RolloutProducer``
- ``aio``          ``AsyncRolloutProducer``
- ``shell``        what both have in common: how they are made, when they refuse
- ``outbox``       what both are shells over: arguments to records, the account of failures
- ``arguments``    what ``publish`` takes: names, types, defaults
- ``validate``     arguments to a segment's fields, or ``InvalidRollout`` (pure)
- ``arrays``       array-likes to packed bytes (pure)
- ``group``        a dispatched group, as a ``with`` block
- ``trajectory``   a rollout of several segments, as a ``with`` block
- ``membership``   what a group still lacks (pure)
- ``forks``        producers that a fork leaves behind
- ``errors``       what a producer may answer
"""

from rollstream.producers.aio import AsyncRolloutProducer
from rollstream.producers.client import RolloutProducer
from rollstream.producers.errors import (
    BufferFull,
    DeliveryFailed,
    FlushTimedOut,
    ForkedProducer,
    InvalidRollout,
    ProducerClosed,
    ProducerError,
    RolloutTooLarge,
    UnknownTopic,
)
from rollstream.producers.group import AsyncGroup, Group
from rollstream.producers.trajectory import AsyncTrajectory, Trajectory

__all__ = [
    "AsyncGroup",
    "AsyncRolloutProducer",
    "AsyncTrajectory",
    "BufferFull",
    "DeliveryFailed",
    "FlushTimedOut",
    "ForkedProducer",
    "Group",
    "InvalidRollout",
    "ProducerClosed",
    "ProducerError",
    "RolloutProducer",
    "RolloutTooLarge",
    "Trajectory",
    "UnknownTopic",
]
