"""``TrainingBatches``: the examples that a batch maker makes of each step's recorded batch."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import SupportsIndex

from rollstream.folds.group.eligible import Accept
from rollstream.sampler.api.api import SamplerApi
from rollstream.sampler.arguments import at_least, truth, whole_number
from rollstream.sampler.batch.batch import Batch
from rollstream.sampler.batch.beyond_float32 import groups_beyond_float32, named
from rollstream.sampler.batch.carried import CarriedGroup, left_over, outcomes_of
from rollstream.sampler.batch.requested import column_names
from rollstream.sampler.decide.batches.made import MadeOf
from rollstream.sampler.decide.batches.shaped import NextShapedBatch
from rollstream.sampler.decide.trainer.commands import Ack
from rollstream.sampler.errors import InvalidRequest
from rollstream.sampler.training.examples.examples import Examples
from rollstream.sampler.training.examples.stored_examples import store_examples
from rollstream.sampler.training.given_mix import mix_of
from rollstream.sampler.training.given_sampler import a_sampler
from rollstream.sampler.training.left_over import LeftOver
from rollstream.sampler.training.makers.interface import BatchMaker, MadeBatch
from rollstream.sampler.training.makers.mixture import MixedBatch, StableMixtureBatchMaker
from rollstream.sampler.training.makers.rollouts import a_maker, examples_of, make_batch
from rollstream.schemas.digest import combined

ID_DIGITS = 16  # Of what an id is made of besides the batch's own, which is unique in a root.
_log = logging.getLogger("rollstream.sampler")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class TrainingBatch:
    """A step's examples. The same step gives the same bytes, also after a crash.

    Attributes:
        batch: as it was recorded, with the groups that were carried.
        made: which of its trajectories are trained on.
        examples: of these, in the order of ``made.trajectories``. Segments of one trajectory follow
            one another, or are merged. It is empty if the maker has nothing to train on.
        metadata: the maker's, and ``carried_stale``, as ``Batch`` has it.
    """

    batch: Batch
    made: MadeBatch
    examples: Examples
    metadata: Mapping[str, float]

    def __repr__(self) -> str:
        """One line."""
        return f"TrainingBatch({self.made}, {self.examples}, {self.batch})"


class TrainingBatches:
    """Makes the examples of each step by a ``BatchMaker``, from the batches of a sampler.

    Trajectories that the maker keeps for later are recorded with the next step. So every step can
    be made again, by another process, and by every rank. Each rank makes the whole step and trains
    on its share. Kept trajectories that become too old are dropped.

    After a step of another maker or ``batch_size``, or one that is not held, nothing is carried,
    with a warning. Groups whose files are lost are not carried, and the step records them. If
    several policies sampled such a group, nothing is carried.

    Not to be shared between threads.

    Args:
        sampler: that serves. Ask for its steps through this object alone.
        maker: chooses. What it keeps is carried from step to step.
        num_groups: new groups a step; a step waits for all of them.
        batch_size: most trajectories a step.
        accept: as in ``next_batch``.
        mix: as in ``next_batch``; None: the maker's own (``BatchMaker.mix``), such as the shares of
            a mixture. A warning then names environments of the sampler that the maker wants nothing
            of; give ``mix`` if you want only some environments.
        columns: as in ``next_batch``.
        merge_turns: as in ``Examples.of``. You may ask for a served step with it and without.

    Raises:
        InvalidRequest: an argument makes no sense: a number below 1, no sampler or no maker,
            settings of a maker that JSON cannot hold, a mix of environments that the sampler does
            not serve or the mixture has no maker for, or a ``batch_size`` with a share below one
            trajectory.
        SamplerError: with a mix, whatever a call that looks raises.

    Examples:
        >>> batches = TrainingBatches(sampler, GrpoBatchMaker(seed=1),   # doctest: +SKIP
        ...                           num_groups=64, batch_size=256)
        >>> step = sampler.resume(None)                                  # doctest: +SKIP
        >>> training = batches.next(step)                                # doctest: +SKIP
        >>> batches.ack(training)                                        # doctest: +SKIP
    """

    def __init__(
        self,
        sampler: SamplerApi,
        maker: BatchMaker,
        *,
        num_groups: SupportsIndex,
        batch_size: SupportsIndex,
        accept: Accept | None = None,
        mix: Mapping[str, float] | None = None,
        columns: Sequence[str] = (),
        merge_turns: bool = False,
    ) -> None:
        groups = at_least("num_groups", num_groups, 1)
        self._batch_size = at_least("batch_size", batch_size, 1)
        self._sampler = a_sampler(sampler)
        self._maker = a_maker("maker", maker)
        if isinstance(maker, StableMixtureBatchMaker):
            maker.check_batch_size(self._batch_size)  # Else the first step is decided before it is.
        self._asked = NextShapedBatch(
            step=0,
            settings=_settings(maker, self._batch_size),
            num_groups=groups,
            min_groups=groups,
            carried=None,
            accept=accept,
            columns=column_names(columns),
        )
        self._merge_turns = truth("merge_turns", merge_turns)
        self._left = LeftOver(self._sampler, self._asked.settings, self._left_by, tuple)
        self._making = Lock()  # A call that is cancelled leaves a thread that makes its batch.
        self._made: MadeOf | None = None  # What was made last,
        self._untold: MadeOf | None = None  # and what of it the sampler does not know.
        self._lacked: set[str] = set()  # Environments, of which a warning has spoken.
        self._checked: Awaitable[None] | None = self._sampler._run(self._check_mix(mix))

    async def _check_mix(self, mix: Mapping[str, float] | None) -> None:
        self._asked = replace(self._asked, mix=await mix_of(self._sampler, self._maker, mix))

    def next(self, step: SupportsIndex, *, timeout_s: float | None = None) -> TrainingBatch:
        """Returns the examples of ``step``: the next one, or one that was served.

        Raises:
            RequestDiffers: the step was served for another maker, or with other arguments.
            MakerDiffers: the maker made another batch of the step before; or of a step that you
                asked for earlier, and another process made.
            SamplerError: whatever ``next_batch`` raises.
        """
        return self._sampler._run(self._next(step, timeout_s))

    async def _next(self, step: SupportsIndex, timeout_s: float | None) -> TrainingBatch:
        asked = replace(self._asked, step=whole_number("step", step), made=self._untold)
        self._untold = None
        batch = await self._left.batch_of(asked.step, timeout_s, lambda _: asked)
        training = await self._sampler._aside(self._training, batch)
        self._warn_of_lacking(batch.step, training.made)
        _warn_of_beyond_float32(batch)
        one, before = self._what_was_made(training), self._made
        if before is not None and before.batch_id == one.batch_id:
            one.check(before.digest)
        if one != before:
            self._made = self._untold = one
        self._left.remember(batch, left_over(batch, training.made.kept))
        return training

    def ack(self, training: TrainingBatch) -> None:
        """Records what became of each trajectory: trained, kept or filtered.

        Env workers may begin new groups for those that were filtered whole. It also records a
        digest of the made batch.

        Raises:
            MakerDiffers: another process made another batch of the step.
            SamplerError: whatever ``SamplerApi.ack`` raises.
        """
        return self._sampler._run(self._ack(training))

    async def _ack(self, training: TrainingBatch) -> None:
        if not isinstance(training, TrainingBatch):
            raise InvalidRequest(
                f"training is {training!r:.200}; give the TrainingBatch that next returned"
            )
        batch, made, told = training.batch, training.made, self._what_was_made(training)
        outcomes = outcomes_of(batch, {"trained": made.trajectories, "kept": made.kept})
        if told == self._untold:
            self._untold = None
        await self._sampler._asked(
            Ack(step=batch.step, batch_id=batch.batch_id, outcomes=outcomes, made=told)
        )

    def create_and_store_batch(
        self,
        batch_size: SupportsIndex | None = None,
        *,
        step: SupportsIndex,
        timeout_s: float | None = None,
    ) -> str:
        """Makes the examples of ``step``, writes them under ``batches/``, and returns their id.

        ``rollstream.sampler.history.stored_examples(id, config=…)`` reads them. The file appears
        whole or not at all. A repeated call returns the same id, from whatever process.

        Args:
            batch_size: of these batches, if given.
            step: as in ``next``.

        Raises:
            InvalidRequest: another ``batch_size``, on which the kept trajectories would depend.
            StoreFull, StoreError: the file could not be written.
            SamplerError: whatever ``next`` raises.
        """
        return self._sampler._run(self._create_and_store(batch_size, step, timeout_s))

    async def _create_and_store(
        self, batch_size: SupportsIndex | None, step: SupportsIndex, timeout_s: float | None
    ) -> str:
        if batch_size is not None and whole_number("batch_size", batch_size) != self._batch_size:
            raise InvalidRequest(
                f"batch_size is {batch_size}, and these batches are made with {self._batch_size}; "
                "leave it out, or make others with TrainingBatches(…, batch_size=…)"
            )
        training = await self._next(step, timeout_s)
        batch = training.batch
        made_of = [batch.digest, self._asked.settings.encode(), repr(batch.columns).encode()]
        if self._merge_turns:
            made_of.append(b"merge_turns")
        examples_id = f"{batch.batch_id}-{combined(made_of).hex()[:ID_DIGITS]}"
        about = {
            "step": batch.step,
            "batch_id": batch.batch_id,
            "digest": batch.digest.hex(),
            "settings": json.loads(self._asked.settings),
            "metadata": dict(training.metadata),
        }
        store = self._sampler.store
        await self._sampler._aside(store_examples, store, examples_id, training.examples, about)
        return examples_id

    def _warn_of_lacking(self, step: int, made: MadeBatch) -> None:
        """Once an environment; the metadata has it of each step."""
        if not isinstance(made, MixedBatch):
            return
        for environment, number in made.lacking.items():
            if number and environment not in self._lacked:
                self._lacked.add(environment)
                _log.warning(
                    "step %d has %d trajectories of %s less than its share, and more of others "
                    "where they had them: too few of its groups were there, or were worth training "
                    "on; ask for more with num_groups or mix. Said once; metadata has '%s/lacking'",
                    step,
                    number,
                    environment,
                    environment,
                )

    def _training(self, batch: Batch) -> TrainingBatch:
        with self._making:
            made = make_batch(self._maker, batch, self._batch_size)
            metadata = dict(self._maker.get_batch_metadata(made))
        metadata["carried_stale"] = float(batch.carried_stale)
        examples = examples_of(batch, made, merge_turns=self._merge_turns)
        return TrainingBatch(batch=batch, made=made, examples=examples, metadata=metadata)

    def _left_by(self, batch: Batch) -> tuple[CarriedGroup, ...]:
        with self._making:
            return left_over(batch, make_batch(self._maker, batch, self._batch_size).kept)

    def _what_was_made(self, training: TrainingBatch) -> MadeOf:
        name = self._maker.settings.get("maker")
        return MadeOf(
            step=training.batch.step,
            batch_id=training.batch.batch_id,
            maker=name if isinstance(name, str) else type(self._maker).__qualname__,
            digest=training.made.digest(),
        )


def _warn_of_beyond_float32(batch: Batch) -> None:
    groups = groups_beyond_float32(batch).tolist()
    if groups:
        _log.warning(
            "step %d leaves out %d groups, filtered as beyond_float32: returns, or differences of "
            "them, that float32 cannot hold; the first is %s. Scale or clip rewards where they "
            "are published",
            batch.step,
            len(groups),
            named(batch, groups[0]),
        )


def _settings(maker: BatchMaker, batch_size: int) -> str:
    """Of what makes the steps, as they are recorded."""
    given = maker.settings
    try:
        settings = {"maker": dict(given), "batch_size": batch_size}
        return json.dumps(settings, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(
            f"settings of {type(maker).__name__} is {given!r:.200}, which cannot be recorded: "
            f"{error}; give a mapping that JSON can hold"
        ) from None
