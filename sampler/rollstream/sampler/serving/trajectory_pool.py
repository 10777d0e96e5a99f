"""``TrajectoryPool``: finished prompt groups, in the order in which they became ready."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.arguments import whole_number
from rollstream.sampler.errors import InvalidRequest, NotEnoughGroups
from rollstream.sampler.serving.api import SamplerApi
from rollstream.sampler.serving.given_sampler import a_sampler
from rollstream.sampler.shaping.batch import Batch

WeightOfLag = Callable[[NDArray[np.int64]], NDArray[np.float64]]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class PoolBatch:
    """The trajectories of one prompt. Steps are the rows of ``batch``.

    A step's lag is how many optimizer steps its weights are behind the newest policy that was
    published when the batch was decided, so it is the same whenever the batch is fetched.

    Attributes:
        prompt_uid: of the group; empty where rollouts were published without ``group_uid``.
        batch: as recorded; ``batch.step`` counts fetches.
        off_policy: bool [rows]; more than ``staleness_threshold`` optimizer steps behind, or
            sampled by weights that a resume went back behind. Never where ``weight_step`` is not
            known, or no policy was published.
        importance_weights: float32 [rows]; 1 where a step is not ``off_policy``.
    """

    prompt_uid: str
    batch: Batch
    off_policy: NDArray[np.bool_]
    importance_weights: NDArray[np.float32]

    def __repr__(self) -> str:
        """One line."""
        return f"PoolBatch({self.prompt_uid!r}, off policy {self.off_policy.sum():,}, {self.batch})"


class TrajectoryPool:
    """Reads what ``StepProducer`` and the HTTP gateway submit; no writer ever waits for it.

    Groups come in the order in which they were sealed, and an unfinished one blocks none behind
    it. A group that was fetched is acknowledged by the next fetch, which makes it final; before
    that a crash of anything, this process included, gives the same group again. With
    ``capacity_groups`` in the pool the oldest one is dropped when another becomes ready: counted
    (``stats().evictions``) and recorded; what is unfinished is in no sampler, so it stays.

    Args:
        sampler: of its own: the pool counts its fetches as steps and resumes where they ended, so
            whoever read before is fenced by the first fetch. The trainer publishes its policies
            through the same object; their steps are optimizer steps, at most one ahead of fetches.
        staleness_threshold: optimizer steps that a step may be behind and still be on policy.
        weight_of_lag: the importance weight of steps that are off policy, int64 [k], at least 0, to
            [k]; default 1 / (lag + 1).

    Raises:
        InvalidRequest: the sampler has settings by which groups would come in another order, or off
            policy ones not at all; it names each, and what to set.

    Examples:
        >>> pool = TrajectoryPool(SamplerClient.attach("pool", config=…))  # doctest: +SKIP
        >>> while (fetched := pool.fetch_batch()) is not None:             # doctest: +SKIP
        ...     train(fetched.batch, fetched.importance_weights)
    """

    def __init__(
        self,
        sampler: SamplerApi,
        *,
        staleness_threshold: int = 0,
        weight_of_lag: WeightOfLag | None = None,
    ) -> None:
        threshold = whole_number("staleness_threshold", staleness_threshold)
        if threshold < 0:
            raise InvalidRequest(f"staleness_threshold is {threshold}; give 0 or more")
        wrong = a_sampler(sampler).pool_standing().wrong
        if wrong:
            raise InvalidRequest(wrong)
        self._sampler = sampler
        self._threshold = threshold
        self._weight_of_lag = weight_of_lag or _inverse
        self._step: int | None = None  # The one to be fetched next, or the one that was.
        self._fetched: Batch | None = None

    def fetch_batch(self, *, timeout_s: float = 0.0) -> PoolBatch | None:
        """The next ready prompt group; None: none became ready in time. It acknowledges the one
        before, also where it returns None.

        Args:
            timeout_s: how long to wait for one; 0: not at all.

        Raises:
            Fenced: another reader has begun.
            GroupsUnreadable, StoreAway, BrokerUnavailable: as ``SamplerApi.next_batch``; the call
                may be repeated.
            InvalidRequest: what ``weight_of_lag`` returned is no weight a step; nothing is
                acknowledged by that.
        """
        step = self._acknowledge()
        try:
            batch = self._sampler.next_batch(step, 1, timeout_s=timeout_s)
        except NotEnoughGroups:
            return None
        off_policy, weights = self._weighed(batch)
        (first, *_) = batch.records(0)
        self._fetched = batch
        return PoolBatch(
            prompt_uid=first.group_uid,
            batch=batch,
            off_policy=off_policy,
            importance_weights=weights,
        )

    def _acknowledge(self) -> int:
        """Makes the batch that was fetched final; the step to fetch now."""
        step = self._step
        if step is None:
            final = self._sampler.pool_standing().final_step
            step = self._sampler.resume(final if final >= 0 else None, later="replay")
        elif self._fetched is not None:
            self._sampler.ack(self._fetched)
            self._sampler.checkpointed(step)
            self._fetched = None
            step += 1
        self._step = step
        return step

    def _weighed(self, batch: Batch) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        known = (batch.weight_steps >= 0) & (batch.policy_step >= 0)
        lags = np.where(known, np.maximum(batch.policy_step - batch.weight_steps, 0), 0)
        off_policy = (lags > self._threshold) | batch.off_branch
        weights = np.ones(len(batch), np.float32)
        if off_policy.any():
            given = np.asarray(self._weight_of_lag(lags[off_policy]))
            each = given.shape == (off_policy.sum(),) and given.dtype.kind in "iuf"
            if not each or not (np.isfinite(given) & (given >= 0)).all():
                raise InvalidRequest(
                    f"weight_of_lag returned {given!r:.200} for lags {lags[off_policy]!r:.200}; "
                    "return a finite number for each, 0 or more"
                )
            weights[off_policy] = given
        return off_policy, weights


def _inverse(lags: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.asarray(1.0 / (lags + 1.0), np.float64)
