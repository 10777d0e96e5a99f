"""``ReadyPacks``: packs that are ready when a data-parallel trainer's optimizer step begins."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from rollstream.folds.batches.served import SHAPING
from rollstream.runtime.config.load import ConfigError
from rollstream.runtime.config.ready_packs import ReadyPacksConfig
from rollstream.sampler.api.api import SamplerApi
from rollstream.sampler.arguments import token_id, whole_number
from rollstream.sampler.batch.batch import Batch
from rollstream.sampler.batch.beyond_float32 import groups_beyond_float32, groups_of, named
from rollstream.sampler.batch.requested import column_names
from rollstream.sampler.decide.batches.packs_alone import READY_PACKS
from rollstream.sampler.decide.batches.shaped import NextShapedBatch
from rollstream.sampler.errors import InvalidRequest
from rollstream.sampler.training.examples.advantages import Advantage, advantages_of
from rollstream.sampler.training.examples.examples import Examples
from rollstream.sampler.training.given_sampler import a_sampler
from rollstream.sampler.training.left_over import LeftOver
from rollstream.sampler.training.packs.filled import Packs
from rollstream.sampler.training.packs.plan import RANKS_MAX
from rollstream.sampler.training.ready_packs.decision import (
    METRICS,
    PackDecision,
    decide,
    groups_asked,
)
from rollstream.sampler.training.ready_packs.offered import Offered

_ALGORITHM = 1
"""Of the decisions; recorded with each, so that no other one repeats them. What the algorithm of
the batch tells (``Batch.algorithm``) is not told again by it."""
_ONLY_ASKS = ("num_groups", "prefetch_target_packs")
"""Settings that have no part in what a decision makes of a batch: how many groups the next step
asks for. The queue outlives a change of these, and the record has them of older steps alone."""
_NO_PART = tuple(f"{READY_PACKS}.{name}" for name in _ONLY_ASKS)
_ONLY_ASK = ("num_groups", "min_groups", *(f"{SHAPING}.{name}" for name in _NO_PART))

_log = logging.getLogger("rollstream.sampler")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ChannelA:
    """A step on the trainer's own path, which does not train on ready packs.

    Attributes:
        batch: as it was recorded; its groups are carried to the next step.
        metrics: the metrics of the queue after this step, for any logger.
        outcomes: what became of the batch's trajectories, as ``SamplerApi.ack`` takes it.
    """

    step: int
    batch: Batch
    metrics: Mapping[str, float]
    outcomes: Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ChannelB:
    """A step that trains on ready packs.

    Attributes:
        batch: as it was recorded.
        packs: this rank's, one a micro-batch: ``gradient_accumulation_steps`` on every rank.
            ``packs.examples`` are rows of the batch.
        versions: the weight step that sampled each pack.
        policy_epochs: the policy epoch of these weights. After a rewind, the same step names other
            weights.
        metrics, outcomes: as in ``ChannelA``.
    """

    step: int
    batch: Batch
    packs: Packs
    versions: tuple[int, ...]
    policy_epochs: tuple[int, ...]
    metrics: Mapping[str, float]
    outcomes: Mapping[str, NDArray[np.int64]]


class ReadyPacks:
    """Queues packs for each rank ahead of the steps that train on them, with one decision a step.

    Every rank makes the same decision from the same record: which channel a step has, and which
    packs. The decision holds for the whole accumulation window, and is the same after a resume. The
    queue is recorded with each step, so a restart rebuilds it, even with another ``num_groups`` or
    ``prefetch_target_packs``. If other settings or ``dp_size`` changed, or the step before is not
    held, the queue begins empty, with a warning. Nothing is trained on twice. Groups whose files
    are lost leave the queue, and the step records them.

    If ``queue_depth`` is 0, or ``b_step_skipped_due_to_queue`` is often 1, packs come too slowly.
    If ``drop_oldest`` is above 0, they come too fast. If ``drop_leftovers`` is often above 0,
    choose a smaller ``pack_length``. After a step without groups, the next one takes a group for
    four packs.

    Args:
        sampler: that serves. Ask for its steps through this object alone. Data for steps on channel
            A comes from elsewhere.
        config: ``[samplers.<name>.ready_packs]`` of the sampler's own configuration.
        dp_rank: which of the trainer's data-parallel ranks this is.
        dp_size: how many there are.
        advantages: as in ``Examples.of``.
        columns: as in ``next_batch``.
        pad_id: the token at padding.

    Raises:
        ConfigError: the settings do not work with so many ranks.
        InvalidRequest: names the argument, its value and remedy.

    Examples:
        >>> ready = ReadyPacks(sampler, config.samplers["trainer-a"].ready_packs,  # doctest: +SKIP
        ...                    dp_rank=rank, dp_size=8)
        >>> decided = ready.next_step(step)                                 # doctest: +SKIP
        >>> if isinstance(decided, ChannelB):                               # doctest: +SKIP
        ...     for micro_step in range(len(decided.packs)): ...
        >>> ready.ack(decided)                                              # doctest: +SKIP
    """

    _checked: Awaitable[None] | None = None  # Making one asks the sampler nothing.

    def __init__(
        self,
        sampler: SamplerApi,
        config: ReadyPacksConfig | None,
        *,
        dp_rank: SupportsIndex,
        dp_size: SupportsIndex,
        advantages: Advantage = "rloo",
        columns: Sequence[str] = (),
        pad_id: SupportsIndex = 0,
    ) -> None:
        if config is None:
            raise ConfigError(
                "the sampler has no section ready_packs; add [samplers.NAME.ready_packs] with "
                "pack_length, and [samplers.NAME.ready_packs.schedule] with b_ratio"
            )
        if not isinstance(config, ReadyPacksConfig):
            raise ConfigError(
                f"config is {config!r:.200}; give load_config(path).samplers[NAME].ready_packs"
            )
        self._rank, self._ranks = whole_number("dp_rank", dp_rank), whole_number("dp_size", dp_size)
        if not 0 <= self._rank < self._ranks:
            raise InvalidRequest(
                f"dp_rank {self._rank} is none of dp_size {self._ranks}; ranks count from 0"
            )
        if self._ranks > RANKS_MAX:
            raise InvalidRequest(f"dp_size is {self._ranks}; give at most {RANKS_MAX}")
        if config.channel_b.mode == "step" and self._ranks > 1:
            raise ConfigError(
                f"channel_b.mode 'step' makes as many packs as a step's groups need, and "
                f"{self._ranks} ranks would wait for one another; set mode to 'async', or train "
                "on one rank"
            )
        self._sampler, self._config = a_sampler(sampler), config
        advantages_of((), (), advantages)  # Refuses an unknown one before the first step.
        self._advantages: Advantage = advantages
        self._columns, self._pad_id = column_names(columns), token_id("pad_id", pad_id)
        self._settings = json.dumps(
            {
                READY_PACKS: config.model_dump(mode="json", exclude={*_ONLY_ASKS}),
                "dp_size": self._ranks,
                "algorithm": _ALGORITHM,
            },
            sort_keys=True,
        )
        self._left = LeftOver(
            sampler,
            self._settings,
            self._decision,
            lambda decision: decision.carried,
            no_part=_NO_PART,
        )

    def next_step(
        self, step: SupportsIndex, *, timeout_s: float | None = None
    ) -> ChannelA | ChannelB:
        """Returns the decision for ``step``: the next one, or one that was decided.

        It takes the groups that are ready and waits for none. With ``channel_b.mode = "step"``, a
        step on channel B waits for ``num_groups``, up to ``timeout_s``. Both wait as long for a
        broker that is away.

        Raises:
            RequestDiffers: the step was decided with settings that give another decision.
            UnknownStep: it is neither decided nor next.
            SamplerError: whatever ``next_shaped_batch`` raises.
        """
        return self._sampler._run(self._next(whole_number("step", step), timeout_s))

    async def _next(self, step: int, timeout_s: float | None) -> ChannelA | ChannelB:
        batch = await self._left.batch_of(step, timeout_s, partial(self._asked, step))
        decision, decided = await self._sampler._aside(self._decided, batch)
        self._left.remember(batch, decision)
        self._warn_of_dropped(step, decision, batch.num_groups - batch.carried_groups)
        return decided

    def _decided(self, batch: Batch) -> tuple[PackDecision, ChannelA | ChannelB]:
        decision = self._decision(batch)
        outcomes = dict(decision.outcomes)
        beyond = np.isin(groups_of(batch), groups_beyond_float32(batch))  # None of their tokens is.
        outcomes["trained"] = outcomes["trained"][~beyond[outcomes["trained"]]]
        step, metrics = batch.step, decision.metrics
        if decision.plan is None:
            return decision, ChannelA(step=step, batch=batch, metrics=metrics, outcomes=outcomes)
        examples = _examples_of(batch, self._advantages)
        return decision, ChannelB(
            step=step,
            batch=batch,
            packs=Packs.of(examples, decision.plan, rank=self._rank, pad_id=self._pad_id),
            versions=decision.versions,
            policy_epochs=decision.policy_epochs,
            metrics=metrics,
            outcomes=outcomes,
        )

    def _warn_of_dropped(self, step: int, decision: PackDecision, new: int) -> None:
        dropped = decision.metrics[f"{METRICS}drop_oldest"]
        if dropped:
            _log.warning(
                "step %d drops the oldest %d packs of each rank: more than queue_limit %d were "
                "ready with %d new groups; groups are larger than those before; raise queue_limit",
                step,
                dropped,
                self._config.queue_limit,
                new,
            )

    def ack(self, decided: ChannelA | ChannelB) -> None:
        """Records what became of each trajectory of the step, as ``SamplerApi.ack`` does.

        Rank 0 acks for all ranks. Env workers may begin new groups for new groups that neither were
        trained on nor stay in the queue.
        """
        if not isinstance(decided, ChannelA | ChannelB):
            raise InvalidRequest(f"decided is {decided!r:.200}; give what next_step returned")
        return self._sampler.ack(decided.batch, outcomes=decided.outcomes)

    def _asked(self, step: int, left: PackDecision | None) -> NextShapedBatch:
        num_groups = groups_asked(self._config, step, self._ranks, left)
        return NextShapedBatch(
            step=step,
            settings=self._settings,
            num_groups=num_groups,
            min_groups=num_groups if self._config.channel_b.mode == "step" else 0,
            carried=None,
            only_ask=_ONLY_ASK,
            columns=self._columns,
        )

    def _decision(self, batch: Batch) -> PackDecision:
        return decide(
            self._config,
            Offered.of(batch),
            step=batch.step,
            current=batch.current_step,
            ranks=self._ranks,
        )


def _examples_of(batch: Batch, advantages: Advantage) -> Examples:
    """Those of the batch; of a group whose returns float32 cannot hold no token counts in the loss,
    since a pack that is due to be trained on has its place."""
    beyond = groups_beyond_float32(batch)
    if not beyond.size:
        return Examples.of(batch, advantages)
    _log.warning(
        "step %d: no token of %d groups counts in the loss: float32 cannot hold their returns, or "
        "the differences of them; the first is %s. Scale or clip rewards where they are published",
        batch.step,
        len(beyond),
        named(batch, int(beyond[0])),
    )
    groups = groups_of(batch)
    within = ~np.isin(groups, beyond)
    found = np.zeros(len(groups), np.float32)
    found[within] = advantages_of(batch.trajectory_returns[within], groups[within], advantages)
    examples = Examples.of(batch, found)
    mask = examples.loss_mask & np.repeat(within[examples.trajectories], examples.lengths)
    log_probs = np.where(mask, examples.generator_log_probs, np.float32(0))
    return replace(examples, loss_mask=mask, generator_log_probs=log_probs)
