"""``ReadyPacks``: packs that are ready when a data-parallel trainer's optimizer step begins."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import SupportsIndex

import numpy as np

from rollstream.runtime.config.load import ConfigError
from rollstream.runtime.config.ready_packs import ReadyPacksConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler.api.api import SamplerApi
from rollstream.sampler.arguments import token_id, whole_number
from rollstream.sampler.batch.batch import Batch
from rollstream.sampler.batch.beyond_float32 import groups_beyond_float32, groups_of, named
from rollstream.sampler.batch.carried import CarriedGroup, Shaping
from rollstream.sampler.batch.requested import column_names
from rollstream.sampler.errors import CarryLost, GroupsUnreadable, InvalidRequest
from rollstream.sampler.training.examples.advantages import Advantage, advantages_of
from rollstream.sampler.training.examples.examples import Examples
from rollstream.sampler.training.given_sampler import a_sampler
from rollstream.sampler.training.left_over import LeftOver, flat
from rollstream.sampler.training.packs.filled import Packs
from rollstream.sampler.training.packs.plan import RANKS_MAX
from rollstream.sampler.training.ready_packs.decision import (
    METRICS,
    PackDecision,
    decide,
    groups_asked,
)
from rollstream.sampler.training.ready_packs.offered import Offered
from rollstream.sampler.training.ready_packs.queue import BuiltRounds

_ALGORITHM = 1
"""Of the decisions; recorded with each, so that no other one repeats them. What the algorithm of
the batch tells (``Batch.algorithm``) is not told again by it."""
_ONLY_ASKS = {"num_groups", "prefetch_target_packs"}
"""Settings that have no part in what a decision makes of a batch: how many groups the next step
asks for. The queue outlives a change of these, and the record has them of older steps alone."""

_log = logging.getLogger("rollstream.sampler")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ChannelA:
    """A step on the trainer's own path, which does not train on ready packs.

    Attributes:
        batch: as it was recorded; its groups are carried to the next step.
        metrics: the metrics of the queue after this step, for any logger.
    """

    step: int
    batch: Batch
    metrics: Mapping[str, float]


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
        metrics: the metrics of the queue after this step, for any logger.
    """

    step: int
    batch: Batch
    packs: Packs
    versions: tuple[int, ...]
    policy_epochs: tuple[int, ...]
    metrics: Mapping[str, float]


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
        self._built: BuiltRounds = {}
        self._columns, self._pad_id = column_names(columns), token_id("pad_id", pad_id)
        self._settings = json.dumps(
            {
                "ready_packs": config.model_dump(mode="json", exclude=_ONLY_ASKS),
                "dp_size": self._ranks,
                "algorithm": _ALGORITHM,
            },
            sort_keys=True,
        )
        asks = {"ready_packs": config.model_dump(mode="json", include=_ONLY_ASKS)}
        self._left = LeftOver(
            sampler,
            self._settings,
            self._decision,
            lambda decision: decision.carried,
            no_part=dict(flat(asks)),
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
        step = whole_number("step", step)
        batch = self._batch(step, self._left.deadline(timeout_s))
        self._left.decided(step)
        decision = self._decision(batch)
        self._left.remember(batch, decision)
        self._warn_of_dropped(step, decision, batch.num_groups - batch.carried_groups)
        if decision.plan is None:
            return ChannelA(step=step, batch=batch, metrics=decision.metrics)
        examples = _examples_of(batch, self._advantages)
        return ChannelB(
            step=step,
            batch=batch,
            packs=Packs.of(examples, decision.plan, rank=self._rank, pad_id=self._pad_id),
            versions=decision.versions,
            policy_epochs=decision.policy_epochs,
            metrics=decision.metrics,
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
        batch = decided.batch
        outcomes = dict(self._decision(batch).outcomes)
        beyond = np.isin(groups_of(batch), groups_beyond_float32(batch))  # None of their tokens is.
        outcomes["trained"] = outcomes["trained"][~beyond[outcomes["trained"]]]
        self._sampler.ack(batch, outcomes=outcomes)

    def _batch(self, step: int, deadline: Deadline) -> Batch:
        """The recorded batch: of a step that was decided as it was, else with the queue that the
        step before left."""
        decided = self._left.summary(step, deadline)
        if decided is not None:
            asked = json.loads(decided.request)
            settings = self._left.as_recorded(asked)
            return self._ask(step, asked["num_groups"], None, deadline, settings=settings)
        carry = self._left.before(step, deadline)
        num_groups = groups_asked(self._config, step, self._ranks, carry.left)
        try:
            return self._ask(step, num_groups, carry.groups, deadline, carry.lost)
        except CarryLost as why:
            self._left.lose(why)
        except GroupsUnreadable:
            self._left.forget()  # Files are lost that were there when the step was made.
            raise
        return self._ask(step, groups_asked(self._config, step, self._ranks, None), (), deadline)

    def _ask(
        self,
        step: int,
        num_groups: int,
        carried: tuple[CarriedGroup, ...] | None,
        deadline: Deadline,
        lost: Mapping[str, str] | None = None,
        settings: str | None = None,
    ) -> Batch:
        shaping = Shaping(
            settings=settings or self._settings,
            num_groups=num_groups,
            min_groups=num_groups if self._config.channel_b.mode == "step" else 0,
            carried=carried,
            lost=lost or {},
        )
        return self._sampler.next_shaped_batch(
            step, shaping, timeout_s=deadline.left_s(), columns=self._columns
        )

    def _decision(self, batch: Batch) -> PackDecision:
        decision = decide(
            self._config,
            Offered.of(batch),
            step=batch.step,
            current=batch.current_step,
            ranks=self._ranks,
            built=self._built,
        )
        self._built = decision.built
        return decision


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
