"""The SDK of env workers: publishes rollouts, and raises errors that name those not delivered.

Map:

- ``client``      ``RolloutProducer``
- ``aio``         ``AsyncRolloutProducer``
- ``settings``    checks what a producer is made with (pure)
- ``engine/``     from what a caller publishes to records in the log
- ``rollouts/``   rollouts, groups and trajectories
- ``steps/``      single steps of trajectories
- ``scores/``     late scores
- ``admission/``  what samplers tell env workers: policies, and how much they may begin
- ``metrics``     ``serve_metrics``, for Prometheus
- ``errors``      the errors that a producer raises
"""

from rollstream.producers.admission.blocks import Admitted, AsyncAdmitted
from rollstream.producers.admission.policies import FollowedPolicy
from rollstream.producers.aio import AsyncRolloutProducer
from rollstream.producers.client import RolloutProducer
from rollstream.producers.engine.stats import ProducerStats
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
    SeveralEventLoops,
    SeveralLineages,
    TooManyGroups,
    VersionConflict,
)
from rollstream.producers.metrics import serve_metrics
from rollstream.producers.rollouts.group import AsyncGroup, Group
from rollstream.producers.rollouts.trajectory import AsyncTrajectory, Trajectory
from rollstream.producers.scores.producer import ScoreProducer
from rollstream.producers.scores.records import Score
from rollstream.producers.steps.producer import AsyncStepProducer, StepProducer
from rollstream.producers.steps.segments import Step
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
    "ProducerStats",
    "RolloutProducer",
    "RolloutTooLarge",
    "RunOver",
    "Score",
    "ScoreProducer",
    "ScoresNotDelivered",
    "SeveralEventLoops",
    "SeveralLineages",
    "Step",
    "StepProducer",
    "TooManyGroups",
    "TopicMismatch",
    "Trajectory",
    "UnknownTopic",
    "VersionConflict",
    "serve_metrics",
]
