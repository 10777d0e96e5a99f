"""Batches for trainers: one recorded decision a step, the same bytes however often it is asked.

Map:

- ``batch/``     ``Batch``, and how it is joined from groups' rows (pure)
- ``decide/``    the commands: what each decides, and what it returns (pure)
- ``rows/``      groups' rows: read from the store, cached, replaced where files are lost
- ``engine/``    the owner of a sampler: claims its log, decides, confirms, tells others
- ``actor/``     the owner as a Ray actor, and the calls to it (the only one that imports ray,
  besides ``api/client``)
- ``api/``       ``Sampler`` in process, ``SamplerClient`` over the actor; ``SamplerView`` for who
  only looks
- ``training/``  what a trainer makes of batches: makers, packs, ready packs, pools
- ``history/``   ``replay``: served batches recomputed; ``lineage``: where they came from
- ``configuration``, ``forked``  a sampler's part of the configuration; refuses forked processes
- ``errors``     every error that a sampler raises
- ``arguments``  checks of a caller's arguments

``SamplerClient`` and the names that begin with ``Async`` load Ray when they are first named; the
others never.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import rollstream.runtime.config  # noqa: F401 - First: it says which extra is missing.
from rollstream.runtime.config.load import load_config
from rollstream.runtime.extras import how_to_install
from rollstream.sampler.api.api import SamplerApi
from rollstream.sampler.api.local import Sampler
from rollstream.sampler.api.view import SamplerView
from rollstream.sampler.batch.batch import Batch
from rollstream.sampler.batch.carried import CarriedGroup, Shaping
from rollstream.sampler.batch.padded import Padded
from rollstream.sampler.decide.queries.evaluation import Earned, Evaluation
from rollstream.sampler.decide.queries.looks import BatchSummary, SamplerStats
from rollstream.sampler.decide.queries.progress import Progress
from rollstream.sampler.decide.queries.sampling import GroupSummary
from rollstream.sampler.errors import (
    ArrayMissing,
    ArraysDiffer,
    CarryLost,
    ConfigurationDiffers,
    DecidedByNewer,
    DecidedByOlder,
    ForkedSampler,
    GroupsUnreadable,
    InvalidRequest,
    MakerDiffers,
    NotEnoughGroups,
    RequestDiffers,
    RowsOutOfReach,
    SamplerError,
    SamplerUnavailable,
    TooManyOpenBatches,
    UnknownRollout,
    UnknownSampler,
    UnknownStep,
)
from rollstream.sampler.training.examples.advantages import Advantage, advantages_of
from rollstream.sampler.training.examples.examples import Examples, RLExample
from rollstream.sampler.training.makers.grpo import GrpoBatchMaker
from rollstream.sampler.training.makers.interface import BatchMaker, MadeBatch, Rollout
from rollstream.sampler.training.makers.mixture import MixedBatch, StableMixtureBatchMaker
from rollstream.sampler.training.makers.rloo import RlooBatchMaker
from rollstream.sampler.training.makers.rollouts import examples_of, make_batch, rollouts_of
from rollstream.sampler.training.packs.filled import Packs
from rollstream.sampler.training.packs.plan import PackPlan, plan_packs
from rollstream.sampler.training.ready_packs.steps import ChannelA, ChannelB, ReadyPacks
from rollstream.sampler.training.training_batches import TrainingBatch, TrainingBatches
from rollstream.sampler.training.trajectory_pool import PoolBatch, TrajectoryPool
from rollstream.schemas.errors import MissingExtra
from rollstream.schemas.order import Policy
from rollstream.streams.errors import Fenced

if TYPE_CHECKING:
    from rollstream.sampler.api.aio import AsyncSamplerClient
    from rollstream.sampler.api.client import SamplerClient
    from rollstream.sampler.training.aio import AsyncTrainingBatches, AsyncTrajectoryPool
    from rollstream.sampler.training.ready_packs.aio import AsyncReadyPacks

__all__ = [
    "Advantage",
    "ArrayMissing",
    "ArraysDiffer",
    "AsyncReadyPacks",
    "AsyncSamplerClient",
    "AsyncTrainingBatches",
    "AsyncTrajectoryPool",
    "Batch",
    "BatchMaker",
    "BatchSummary",
    "CarriedGroup",
    "CarryLost",
    "ChannelA",
    "ChannelB",
    "ConfigurationDiffers",
    "DecidedByNewer",
    "DecidedByOlder",
    "Earned",
    "Evaluation",
    "Examples",
    "Fenced",
    "ForkedSampler",
    "GroupSummary",
    "GroupsUnreadable",
    "GrpoBatchMaker",
    "InvalidRequest",
    "MadeBatch",
    "MakerDiffers",
    "MissingExtra",
    "MixedBatch",
    "NotEnoughGroups",
    "PackPlan",
    "Packs",
    "Padded",
    "Policy",
    "PoolBatch",
    "Progress",
    "RLExample",
    "ReadyPacks",
    "RequestDiffers",
    "RlooBatchMaker",
    "Rollout",
    "RowsOutOfReach",
    "Sampler",
    "SamplerApi",
    "SamplerClient",
    "SamplerError",
    "SamplerStats",
    "SamplerUnavailable",
    "SamplerView",
    "Shaping",
    "StableMixtureBatchMaker",
    "TooManyOpenBatches",
    "TrainingBatch",
    "TrainingBatches",
    "TrajectoryPool",
    "UnknownRollout",
    "UnknownSampler",
    "UnknownStep",
    "advantages_of",
    "examples_of",
    "load_config",
    "make_batch",
    "plan_packs",
    "rollouts_of",
]

_OVER_RAY = {
    "AsyncReadyPacks": "rollstream.sampler.training.ready_packs.aio",
    "AsyncSamplerClient": "rollstream.sampler.api.aio",
    "AsyncTrainingBatches": "rollstream.sampler.training.aio",
    "AsyncTrajectoryPool": "rollstream.sampler.training.aio",
    "SamplerClient": "rollstream.sampler.api.client",
}


def __dir__() -> list[str]:
    """The public names, for completion and ``help``; without Ray those that need none."""
    return sorted(set(__all__) - (set() if find_spec("ray") else _OVER_RAY.keys()))


def __getattr__(name: str) -> Any:
    """Ray takes a second to load, and a trainer without it needs none of it."""
    if name not in _OVER_RAY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_OVER_RAY[name]), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "ray":
            raise
        raise MissingExtra(
            f"{name} needs Ray, which is not installed here ({how_to_install('sampler')}); "
            "or use Sampler, which runs in the trainer's own process"
        ) from error
