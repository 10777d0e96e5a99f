"""Batches for trainers: one recorded decision a step, the same bytes however often it is asked.

Map:

- ``deciding/``  the commands: what each decides, and what it returns (pure)
- ``admission/`` how many more groups env workers may begin (pure)
- ``shaping/``   ``Batch``, and how it is joined from groups' rows (pure)
- ``serving/``   executes commands: ``Sampler`` in process, ``SamplerClient`` over a Ray actor;
  ``SamplerView`` for who only looks
- ``history/``   ``replay``: served batches recomputed; ``lineage``: where they came from
- ``errors``     every error that a sampler raises
- ``arguments``  checks of a caller's arguments

``SamplerClient`` and ``AsyncSamplerClient`` load Ray when they are first named; the others never.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import rollstream.runtime.config  # noqa: F401 - First: it says which extra is missing.
from rollstream.runtime.config.load import load_config
from rollstream.runtime.extras import how_to_install
from rollstream.sampler.deciding.evaluation import Earned, Evaluation
from rollstream.sampler.deciding.progress import Progress
from rollstream.sampler.deciding.queries import BatchSummary, SamplerStats
from rollstream.sampler.deciding.sampling import GroupSummary
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
from rollstream.sampler.serving.api import SamplerApi
from rollstream.sampler.serving.local import Sampler
from rollstream.sampler.serving.ready_packs import ChannelA, ChannelB, ReadyPacks
from rollstream.sampler.serving.training_batches import TrainingBatch, TrainingBatches
from rollstream.sampler.serving.trajectory_pool import PoolBatch, TrajectoryPool
from rollstream.sampler.serving.view import SamplerView
from rollstream.sampler.shaping.advantages import Advantage, advantages_of
from rollstream.sampler.shaping.batch import Batch
from rollstream.sampler.shaping.carried import CarriedGroup, Shaping
from rollstream.sampler.shaping.examples import Examples, RLExample
from rollstream.sampler.shaping.makers.grpo import GrpoBatchMaker
from rollstream.sampler.shaping.makers.interface import BatchMaker, MadeBatch, Rollout
from rollstream.sampler.shaping.makers.mixture import MixedBatch, StableMixtureBatchMaker
from rollstream.sampler.shaping.makers.rloo import RlooBatchMaker
from rollstream.sampler.shaping.makers.rollouts import examples_of, make_batch, rollouts_of
from rollstream.sampler.shaping.packs.filled import Packs
from rollstream.sampler.shaping.packs.plan import PackPlan, plan_packs
from rollstream.sampler.shaping.padded import Padded
from rollstream.schemas.errors import MissingExtra
from rollstream.schemas.order import Policy
from rollstream.streams.errors import Fenced

if TYPE_CHECKING:
    from rollstream.sampler.serving.aio import AsyncSamplerClient
    from rollstream.sampler.serving.client import SamplerClient

__all__ = [
    "Advantage",
    "ArrayMissing",
    "ArraysDiffer",
    "AsyncSamplerClient",
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
    "AsyncSamplerClient": "rollstream.sampler.serving.aio",
    "SamplerClient": "rollstream.sampler.serving.client",
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
