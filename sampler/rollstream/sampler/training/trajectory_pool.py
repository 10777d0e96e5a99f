"""``TrajectoryPool``: finished prompt groups, in the order in which they became ready."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.api.api import SamplerApi
from rollstream.sampler.arguments import array, at_least, number, whole_number
from rollstream.sampler.batch.batch import Batch
from rollstream.sampler.decide.trainer.pool import (
    AcknowledgeFetch,
    AskPool,
    FetchGroup,
    ResumePool,
)
from rollstream.sampler.errors import InvalidRequest, NotEnoughGroups
from rollstream.sampler.training.given_sampler import a_sampler
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
    """Holds the trajectories of one prompt. The rows of ``batch`` are their steps.

    The lag of a step is the number of optimizer steps from its weights to the newest policy when
    the batch was decided. So it is the same whenever the batch is fetched. If the weights are off
    the branch, or ahead of that policy, the lag is the distance of the two, at least 1.

    Attributes:
        prompt_uid: the prompt, as its steps named it; empty if rollouts were published without
            ``group_uid``.
        batch: the recorded batch. ``batch.step`` counts fetches. ``batch.trajectory_uids`` has the
            uids that writers gave.
        off_policy: bool [rows]; True if the lag is above ``staleness_threshold``, or the weights
            are off the branch, or ahead of that policy. Steps with an unknown ``weight_step`` are
            False, and so are all steps before the first policy.
        importance_weights: float32 [rows]; 1 for steps that are not ``off_policy``. They do not
            replace the ratio of probabilities in a loss: compute that from ``batch.logprobs``.
    """

    prompt_uid: str
    batch: Batch
    off_policy: NDArray[np.bool_]
    importance_weights: NDArray[np.float32]

    def __repr__(self) -> str:
        """One line."""
        return f"PoolBatch({self.prompt_uid!r}, off policy {self.off_policy.sum():,}, {self.batch})"


class TrajectoryPool:
    """Reads finished prompts, in the order in which they were sealed. No writer waits for it.

    Writers are ``StepProducer`` and the HTTP gateway. An unfinished prompt blocks none behind it.

    A fetch acknowledges the prompt that was fetched before it, and makes it final. If anything
    crashes before that, this process included, the next fetch gives the same prompt again. Save
    weights before the next fetch. If each fetch is one optimizer step, ``batch.step`` of a fetch
    below the step of your weights is in them already.

    A pool has one reader, in one thread. The first fetch of a new reader fences the one before,
    which raises ``Fenced``. The new reader gets the prompts that the other did not acknowledge.

    A pool keeps at most ``max_queue_size`` finished prompts, or the sampler's ``capacity_groups``,
    whichever is less. Above that it drops the oldest. They are counted (``stats().evictions``) and
    recorded. Unfinished prompts and open fetches are never dropped.

    Args:
        sampler: a sampler for this pool alone, since the pool counts its fetches as steps. Publish
            policies through the same object. Their steps are optimizer steps, at most as many as
            there were fetches, and one. A trainer that goes on fetches once before its first
            ``publish_policy``.
        max_queue_size: most finished prompts. Each fetch first drops the oldest above it. None:
            only ``capacity_groups`` bounds them, at each seal.
        staleness_threshold: optimizer steps that a step may be behind without being off-policy.
        weight_step: the weights that a restarted trainer goes on with. Rollouts of later weights,
            which the trainer lost, are off-policy. None: the first policy that it publishes tells.
        weight_of_lag: a function from lags of off-policy steps, int64 [k], to their importance
            weights [k], each 0 or more. None: 1 / (lag + 1).

    Raises:
        InvalidRequest: an argument, or a setting of the sampler, does not fit a pool. It names each
            and what to set: ``order = "ready"``, ``max_policy_lag = -1``, ``off_branch = "keep"``.

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
        self._sampler = a_sampler(sampler)
        self._threshold = threshold
        self._weight_of_lag = _inverse if weight_of_lag is None else weight_of_lag
        self._step = -1  # The one to be fetched next, or the one that was.
        self._trainer_epoch: int | None = None  # None: it has not begun to read.
        self._fetched: Batch | None = None
        self._checked: Awaitable[None] | None = self._sampler._run(self._check_settings())

    async def _check_settings(self) -> None:
        if wrong := await self._sampler._asked(AskPool()):
            raise InvalidRequest(wrong)

    def fetch_batch(self, *, timeout_s: float = 0.0) -> PoolBatch | None:
        """Returns the next finished prompt, or None. Acknowledges the fetch before in both cases.

        Args:
            timeout_s: how long to wait for a prompt; 0: not at all.

        Raises:
            UnknownStep: on the first call: ``weight_step`` is more than the number of fetches.
            Fenced: another reader has begun. It gets what this one did not acknowledge.
            GroupsUnreadable, StoreAway, BrokerUnavailable: as for ``SamplerApi.next_batch``. Repeat
                the call.
            InvalidRequest: ``weight_of_lag`` did not return a weight for each step.
        """
        return self._sampler._run(self._fetch(timeout_s))

    async def _fetch(self, timeout_s: float) -> PoolBatch | None:
        try:
            batch = await self._next(timeout_s)
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

    async def _next(self, timeout_s: float) -> Batch:
        """Makes the batch that was fetched final, and fetches the next one."""
        sampler = self._sampler
        if self._trainer_epoch is None:
            begun = await sampler._asked(ResumePool(weight_step=self._weight_step))
            self._step, self._trainer_epoch = begun
        elif self._trainer_epoch != sampler.trainer_epoch:
            raise Fenced(
                f"this reader belongs to epoch {self._trainer_epoch}, and epoch "
                f"{sampler.trainer_epoch} was begun through the same sampler object"
            )
        epoch = self._trainer_epoch  # Another thread may begin one, through the same object.
        if (before := self._fetched) is not None:
            await sampler._asked(
                AcknowledgeFetch(step=before.step, batch_id=before.batch_id, trainer_epoch=epoch)
            )
            self._fetched = None
            self._step += 1
        fetch = FetchGroup(
            step=self._step,
            num_groups=1,
            columns=_COLUMNS,
            trainer_epoch=epoch,
            max_queue_size=self._max_queue_size,
        )
        return await sampler._asked_for_batch(fetch, timeout_s)

    def _weighed(self, batch: Batch) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        known = (batch.weight_steps >= 0) & (batch.policy_step >= 0)
        behind = np.where(known, batch.policy_step - batch.weight_steps, 0)
        # Weights that were left, or not published, differ from those of their step.
        others = batch.off_branch | (behind < 0)
        lags = np.maximum(np.abs(behind), others)
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
