"""``ReadyPacks``: packs that are ready when a data-parallel trainer's optimizer step begins."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import SupportsIndex

from rollstream.runtime.config.load import ConfigError
from rollstream.runtime.config.ready_packs import ReadyPacksConfig
from rollstream.sampler.arguments import token_id, whole_number
from rollstream.sampler.errors import CarryLost, InvalidRequest
from rollstream.sampler.serving.api import SamplerApi
from rollstream.sampler.serving.left_over import LeftOver
from rollstream.sampler.shaping.advantages import Advantage
from rollstream.sampler.shaping.batch import Batch
from rollstream.sampler.shaping.carried import CarriedGroup, Shaping
from rollstream.sampler.shaping.examples import Examples
from rollstream.sampler.shaping.packs.filled import Packs
from rollstream.sampler.shaping.ready_packs.decision import Decision, decide, groups_asked
from rollstream.sampler.shaping.ready_packs.offered import Offered

_ALGORITHM = 1
"""Of the decisions; recorded with each, so that no other one repeats them."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ChannelA:
    """The step is the trainer's own, synchronous path.

    Attributes:
        batch: as it was recorded; its groups are carried to the next step.
        metrics: as ``shaping.ready_packs.decision.decide`` names them.
    """

    step: int
    batch: Batch
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ChannelB:
    """The step trains on packs that were ready.

    Attributes:
        batch: as it was recorded.
        packs: this rank's, a micro-batch each: ``gradient_accumulation_steps`` of them, on every
            rank. ``packs.examples`` are rows of the batch.
        versions: the weight step that sampled all of each of them.
        metrics: as ``shaping.ready_packs.decision.decide`` names them.
    """

    step: int
    batch: Batch
    packs: Packs
    versions: tuple[int, ...]
    metrics: Mapping[str, float]


class ReadyPacks:
    """A bounded first-in-first-out queue of packs for each rank, and one decision a step.

    Every rank makes the same decision from the same record: which channel a step has, and which
    packs. It stays for the whole accumulation window, and is the same after a resume. The queue
    itself is recorded with each step (the groups that are carried), so a restart rebuilds it. After
    a step that was decided with other settings or another ``dp_size``, that is not held, or whose
    files are gone, the queue begins empty, with a warning: nothing is trained on twice.

    Args:
        sampler: that serves; its steps are asked for through this object alone. What a step on
            channel A trains on comes from elsewhere.
        config: ``[samplers.<name>.ready_packs]``.
        dp_rank: which of the trainer's data-parallel ranks this is.
        dp_size: how many there are.
        advantages: as ``Examples.of`` has them.
        columns: as ``next_batch`` has them.
        pad_id: the token at padding.

    Raises:
        ConfigError: the settings do not work with so many ranks.
        InvalidRequest: there is no such rank.

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
        self._rank, self._ranks = whole_number("dp_rank", dp_rank), whole_number("dp_size", dp_size)
        if not 0 <= self._rank < self._ranks:
            raise InvalidRequest(
                f"dp_rank {self._rank} is none of dp_size {self._ranks}; ranks count from 0"
            )
        if config.channel_b.mode == "step" and self._ranks > 1:
            raise ConfigError(
                f"channel_b.mode 'step' makes as many packs as a step's groups need, and "
                f"{self._ranks} ranks would wait for one another; set mode to 'async', or train "
                "on one rank"
            )
        self._sampler, self._config = sampler, config
        self._advantages: Advantage = advantages
        self._columns, self._pad_id = columns, token_id("pad_id", pad_id)
        self._settings = json.dumps(
            {
                "ready_packs": config.model_dump(mode="json"),
                "dp_size": self._ranks,
                "algorithm": _ALGORITHM,
            },
            sort_keys=True,
        )
        self._left = LeftOver(sampler, self._settings, self._decision)

    def next_step(
        self, step: SupportsIndex, *, timeout_s: float | None = None
    ) -> ChannelA | ChannelB:
        """The decision for ``step``: the next one, or one that was decided.

        It takes the groups that are ready and waits for none; with ``channel_b.mode = "step"`` a
        step on channel B waits for ``num_groups`` of them, up to ``timeout_s``.

        Raises:
            RequestDiffers: the step was decided with other settings.
            UnknownStep: it is neither decided nor next.
            SamplerError: whatever ``next_shaped_batch`` raises.
        """
        step = whole_number("step", step)
        batch = self._batch(step, timeout_s)
        decision = self._decision(batch)
        self._left.remember(batch, decision)
        if decision.plan is None:
            return ChannelA(step=step, batch=batch, metrics=decision.metrics)
        examples = Examples.of(batch, self._advantages)
        return ChannelB(
            step=step,
            batch=batch,
            packs=Packs.of(examples, decision.plan, rank=self._rank, pad_id=self._pad_id),
            versions=decision.versions,
            metrics=decision.metrics,
        )

    def ack(self, decided: ChannelA | ChannelB) -> None:
        """As ``SamplerApi.ack``, of either channel; rank 0 acks for all ranks. New groups none of
        which is trained on or stays in the queue count as ``filtered``; one that stays counts in
        the step that it was new in, whatever becomes of it later."""
        batch = decided.batch
        decision = self._decision(batch)
        left = {one.group_id for one in decision.carried}
        if decision.plan is not None:
            groups = batch.group_index[decision.plan.rank >= 0].tolist()
            left |= {batch.sampled.group_ids[batch.slots[group]] for group in groups}
        new = batch.sampled.group_ids[: batch.num_groups - batch.carried_groups]
        filtered = [group for group, group_id in enumerate(new) if group_id not in left]
        self._sampler.ack(batch, filtered=filtered)

    def _batch(self, step: int, timeout_s: float | None) -> Batch:
        """The recorded batch: of a step that was decided as it was, else with the queue that the
        step before left."""
        decided = self._sampler.batch_summary(step)
        if decided is not None:
            return self._ask(step, json.loads(decided.request)["num_groups"], None, timeout_s)
        left = self._left.before(step)
        if left is not None:
            num_groups = groups_asked(self._config, step, left.ready)
            try:
                return self._ask(step, num_groups, left.carried, timeout_s)
            except CarryLost as lost:
                self._left.lose(step, lost)
        return self._ask(step, groups_asked(self._config, step, 0), (), timeout_s)

    def _ask(
        self,
        step: int,
        num_groups: int,
        carried: tuple[CarriedGroup, ...] | None,
        timeout_s: float | None,
    ) -> Batch:
        shaping = Shaping(
            settings=self._settings,
            num_groups=num_groups,
            min_groups=num_groups if self._config.channel_b.mode == "step" else 0,
            carried=carried,
        )
        return self._sampler.next_shaped_batch(
            step, shaping, timeout_s=timeout_s, columns=self._columns
        )

    def _decision(self, batch: Batch) -> Decision:
        return decide(
            self._config,
            Offered.of(batch),
            step=batch.step,
            current=batch.current_step,
            ranks=self._ranks,
        )
