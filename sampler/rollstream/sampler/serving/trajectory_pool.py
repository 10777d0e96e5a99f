"""``TrajectoryPool``: finished prompt groups, in the order in which they became ready."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.serving.api import SamplerApi
from rollstream.sampler.shaping.batch import Batch


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PoolBatch:
    """The trajectories of one prompt. Steps are the rows of ``batch``.

    Attributes:
        off_policy: bool [rows]; more than ``staleness_threshold`` optimizer steps behind.
        importance_weights: float32 [rows]; 1 where a step is on policy.
    """

    prompt_uid: str
    batch: Batch
    off_policy: NDArray[np.bool_]
    importance_weights: NDArray[np.float32]


class TrajectoryPool:
    """Reads what ``StepProducer`` and the HTTP gateway submit; no writer ever waits for it.

    Groups come in the order in which they became ready, and an unfinished one blocks none behind
    it. A group that was fetched is acknowledged by the next fetch; before that a crash of anything
    gives the same group again.

    Args:
        sampler: of its own: the pool counts its fetches as steps.
        staleness_threshold: optimizer steps that a step may be behind and still be on policy.
        weight_of_lag: the importance weight of a step that is more than that behind, by its lag;
            default 1 / (lag + 1).
    """

    def __init__(
        self,
        sampler: SamplerApi,
        *,
        staleness_threshold: int = 0,
        weight_of_lag: Callable[[NDArray[np.int64]], NDArray[np.float64]] | None = None,
    ) -> None:
        raise NotImplementedError

    def fetch_batch(self, *, timeout_s: float = 0.0) -> PoolBatch | None:
        """The next ready prompt group; None: none became ready in time."""
        raise NotImplementedError
