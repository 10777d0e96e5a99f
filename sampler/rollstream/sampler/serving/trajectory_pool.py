"""``TrajectoryPool``: finished prompt groups, in the order in which they became ready."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.arguments import array, at_least, number, whole_number
from rollstream.sampler.errors import InvalidRequest, NotEnoughGroups
from rollstream.sampler.serving.api import SamplerApi
from rollstream.sampler.serving.given_sampler import a_sampler
from rollstream.sampler.shaping.batch import Batch
from rollstream.schemas.order import UNKNOWN_STEP
from rollstream.streams.errors import Fenced

ONE_READER = (
    "A pool has one reader, the one that began last: it gets what this one fetched and had not "
    "acknowledged, so stop this reader and drop what it made of that. Consumers that are to share "
    "a pool share what one reader fetches; one that is to have every prompt reads a pool of its "
    "own: another [samplers.<name>] of the same environments"
)
_COLUMNS = ("group_uids", "trajectory_uids")
WeightOfLag = Callable[[NDArray[np.int64]], NDArray[np.float64]]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class PoolBatch:
    """The trajectories of one prompt. Steps are the rows of ``batch``.

    A step's lag is how many optimizer steps its weights are behind the newest policy that was
    published when the batch was decided, so it is the same whenever the batch is fetched. Of
    weights that a resume went back behind, or that are ahead of that policy, it is how many steps
    the two are apart, at least 1.

    Attributes:
        prompt_uid: of the group; empty where rollouts were published without ``group_uid``.
        batch: as recorded; ``batch.step`` counts fetches, and ``batch.trajectory_uids`` are those
            that writers of steps gave.
        off_policy: bool [rows]; more than ``staleness_threshold`` optimizer steps behind, or
            sampled by weights that a resume went back behind, or by weights ahead of that policy,
            which its trainer had not published. Never where ``weight_step`` is not
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
    that a crash of anything, this process included, gives the same group again.

    A pool has one reader, in one thread. Its first fetch fences whoever read before, whose next one
    raises ``Fenced``: what one of them acknowledged the other never fetches, and what was fetched
    and not acknowledged the new one fetches again.

    Beyond ``max_queue_size``, or the sampler's ``capacity_groups``, the oldest ready groups are
    dropped: counted (``stats().evictions``) and recorded. What is unfinished is in no sampler, so
    it stays.

    Args:
        sampler: of its own: the pool counts its fetches as steps and resumes where they ended. The
            trainer publishes its policies through the same object; their steps are optimizer steps,
            at most one ahead of fetches.
        max_queue_size: most ready groups; each fetch drops the oldest beyond it first. None: only
            the sampler's ``capacity_groups`` bounds them, whenever one is sealed; so it does where
            it is the smaller one.
        staleness_threshold: optimizer steps that a step may be behind and still be on policy; below
            1 it may be none behind.
        weight_step: of the weights that the trainer goes on with, where it begins again: rollouts
            of weights beyond them, which it made before, are off policy. None: the first policy
            that it publishes says so, and is taken to be made after it began.
        weight_of_lag: the importance weight of steps that are off policy, int64 [k], at least 0, to
            [k]; default 1 / (lag + 1).

    Raises:
        InvalidRequest: an argument is none that could work, or the sampler has settings by which
            groups would come in another order, or off policy ones not at all; it names each, and
            what to set.

    Examples:
        >>> pool = TrajectoryPool(SamplerClient.attach("pool", config=…))  # doctest: +SKIP
        >>> while (fetched := pool.fetch_batch()) is not None:             # doctest: +SKIP
        ...     train(fetched.batch, fetched.importance_weights)
    """

    def __init__(
        self,
        sampler: SamplerApi,
        *,
        max_queue_size: int | None = None,
        staleness_threshold: float = 0,
        weight_step: int | None = None,
        weight_of_lag: WeightOfLag | None = None,
    ) -> None:
        self._max_queue_size = (
            None if max_queue_size is None else at_least("max_queue_size", max_queue_size, 1)
        )
        threshold = number("staleness_threshold", staleness_threshold)
        if threshold < 0:
            raise InvalidRequest(f"staleness_threshold is {threshold}; give 0 or more")
        self._weight_step = UNKNOWN_STEP
        if weight_step is not None:
            self._weight_step = whole_number("weight_step", weight_step)
            if self._weight_step < 0:
                raise InvalidRequest(f"weight_step is {weight_step}; give 0 or more, or None")
        if weight_of_lag is not None and not callable(weight_of_lag):
            raise InvalidRequest(
                f"weight_of_lag is {weight_of_lag!r:.200}; give a function of lags to weights, "
                "int64 [k] to [k], or None"
            )
        wrong = a_sampler(sampler).unfit_for_pool()
        if wrong:
            raise InvalidRequest(wrong)
        self._sampler = sampler
        self._threshold = threshold
        self._weight_of_lag = _inverse if weight_of_lag is None else weight_of_lag
        self._step = -1  # The one to be fetched next, or the one that was.
        self._trainer_epoch: int | None = None  # None: it has not begun to read.
        self._fetched: Batch | None = None

    def fetch_batch(self, *, timeout_s: float = 0.0) -> PoolBatch | None:
        """The next ready prompt group; None: none became ready in time. It acknowledges the one
        before, also where it returns None.

        Args:
            timeout_s: how long to wait for one; 0: not at all.

        Raises:
            UnknownStep: its first call, and ``weight_step`` is more than groups were fetched.
            Fenced: another reader has begun. It fetches anew what this one had not acknowledged.
            GroupsUnreadable, StoreAway, BrokerUnavailable: as ``SamplerApi.next_batch``; the call
                may be repeated.
            InvalidRequest: what ``weight_of_lag`` returned is no weight a step; nothing is
                acknowledged by that.
        """
        try:
            batch = self._next(timeout_s)
        except NotEnoughGroups:
            return None
        except Fenced as error:
            raise Fenced(f"{error}. {ONE_READER}") from error
        off_policy, weights = self._weighed(batch)
        self._fetched = batch
        return PoolBatch(
            prompt_uid=batch.group_uids[0] if batch.group_uids else "",
            batch=batch,
            off_policy=off_policy,
            importance_weights=weights,
        )

    def _next(self, timeout_s: float) -> Batch:
        """Makes the batch that was fetched final, and fetches the next one."""
        if self._trainer_epoch is None:
            self._step, self._trainer_epoch = self._sampler.resume_pool(self._weight_step)
        elif self._trainer_epoch != self._sampler.trainer_epoch:
            raise Fenced(
                f"this reader belongs to epoch {self._trainer_epoch}, and epoch "
                f"{self._sampler.trainer_epoch} was begun through the same sampler object"
            )
        epoch = self._trainer_epoch  # Another thread may begin one, through the same object.
        if self._fetched is not None:
            self._sampler.acknowledge_fetch(self._fetched, trainer_epoch=epoch)
            self._fetched = None
            self._step += 1
        return self._sampler.fetch_group(
            self._step,
            trainer_epoch=epoch,
            timeout_s=timeout_s,
            columns=_COLUMNS,
            max_queue_size=self._max_queue_size,
        )

    def _weighed(self, batch: Batch) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        known = (batch.weight_steps >= 0) & (batch.policy_step >= 0)
        behind = np.where(known, batch.policy_step - batch.weight_steps, 0)
        # Weights that were left, or not published, differ from those of their step.
        others = batch.off_branch | (behind < 0)
        lags = np.maximum(np.where(others, np.abs(behind), behind), others)
        off_policy = (lags > self._threshold) | others
        weights = np.ones(len(batch), np.float32)
        if off_policy.any():
            given = array(self._weight_of_lag(lags[off_policy]))
            each = given.shape == (off_policy.sum(),) and given.dtype.kind in "iuf"
            if not each or not ((given >= 0) & (given <= np.finfo(np.float32).max)).all():
                raise InvalidRequest(
                    f"weight_of_lag returned {given!r:.200} for lags {lags[off_policy]!r:.200}; "
                    "return a finite number for each, 0 or more, that float32 has room for"
                )
            weights[off_policy] = given
        return off_policy, weights


def _inverse(lags: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.asarray(1.0 / (lags + 1.0), np.float64)
