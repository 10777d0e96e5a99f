"""The SDK of env workers: publishes rollouts, and raises errors that name those not delivered.

Map, a line a file:

- ``client``       ``RolloutProducer``
- ``aio``          ``AsyncRolloutProducer``
- ``shell``        how both are made, and when they refuse calls (closed, forked)
- ``connecting``   what every producer is made with: a broker, and topics' names
- ``settings``     checks what a producer is made with (pure)
- ``outbox``       the core of both: builds entries, collects failed deliveries (no I/O)
- ``gather``       what is gathered for each partition until it is sent as one record (pure)
- ``sending``      sends records, and settles each entry once
- ``linger``       the thread that sends what the sync producer gathered
- ``arguments``    what ``publish`` takes: names, types, defaults
- ``validate``     arguments to a segment's fields, or ``InvalidRollout`` (pure)
- ``arrays``       array-likes to packed bytes (pure)
- ``group``        a dispatched group, as a ``with`` block
- ``membership``   what a group publishes, and what it still lacks (no I/O)
- ``trajectory``   a rollout of several segments, as a ``with`` block
- ``steps``        how groups and trajectories publish entry by entry, awaited or not
- ``step_producer``  ``StepProducer`` and ``AsyncStepProducer``
- ``step_segments``  a step of a trajectory as a rollout segment (pure)
- ``submitted``    what a writer of steps submitted, so that contradictions are refused (pure)
- ``open_prompts``  bounds the prompts that a writer of steps began and that have not ended (pure)
- ``process``      what becomes of producers when a process is forked, and when it ends
- ``scores``       ``ScoreProducer``
- ``score_versions``  reads scores, to learn which version one became
- ``score_records``  what a verifier says as a record, or ``InvalidRollout`` (pure)
- ``admission/``   what samplers tell env workers: policies, and how much they may begin
- ``errors``       the errors that a producer raises
"""

from rollstream.producers.admission.blocks import Admitted, AsyncAdmitted
from rollstream.producers.admission.policies import FollowedPolicy
from rollstream.producers.aio import AsyncRolloutProducer
from rollstream.producers.client import RolloutProducer
from rollstream.producers.errors import (
    Contradiction,
    DeliveryFailed,
    FlushTimedOut,
    ForkedProducer,
    InvalidSettings,
    NoPolicy,
    NotAdmitted,
    ProducerClosed,
    ProducerDied,
    ProducerError,
    RolloutTooLarge,
    RunOver,
    ScoresNotDelivered,
    SeveralLineages,
    TooManyGroups,
    VersionConflict,
)
from rollstream.producers.group import AsyncGroup, Group
from rollstream.producers.score_records import Score
from rollstream.producers.scores import ScoreProducer
from rollstream.producers.step_producer import AsyncStepProducer, StepProducer
from rollstream.producers.step_segments import Step
from rollstream.producers.trajectory import AsyncTrajectory, Trajectory
from rollstream.schemas.errors import InvalidRollout
from rollstream.streams.errors import BrokerUnavailable, BufferFull, TopicMismatch, UnknownTopic

__all__ = [
    "Admitted",
    "AsyncAdmitted",
    "AsyncGroup",
    "AsyncRolloutProducer",
    "AsyncStepProducer",
    "AsyncTrajectory",
    "BrokerUnavailable",
    "BufferFull",
    "Contradiction",
    "DeliveryFailed",
    "FlushTimedOut",
    "FollowedPolicy",
    "ForkedProducer",
    "Group",
    "InvalidRollout",
    "InvalidSettings",
    "NoPolicy",
    "NotAdmitted",
    "ProducerClosed",
    "ProducerDied",
    "ProducerError",
    "RolloutProducer",
    "RolloutTooLarge",
    "RunOver",
    "Score",
    "ScoreProducer",
    "ScoresNotDelivered",
    "SeveralLineages",
    "Step",
    "StepProducer",
    "TooManyGroups",
    "TopicMismatch",
    "Trajectory",
    "UnknownTopic",
    "VersionConflict",
]
