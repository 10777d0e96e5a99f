"""``TrainingBatches``: what a batch maker made of each step's recorded batch."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import SupportsIndex

from rollstream.runtime.deadline import Deadline
from rollstream.sampler.arguments import at_least, truth, whole_number
from rollstream.sampler.deciding.made import RecordMade
from rollstream.sampler.deciding.requests import check_accept
from rollstream.sampler.errors import (
    CarryLost,
    GroupsUnreadable,
    InvalidRequest,
    MakerDiffers,
    UnknownStep,
)
from rollstream.sampler.history.stored_examples import store_examples
from rollstream.sampler.serving.api import SamplerApi
from rollstream.sampler.serving.given_mix import mix_of
from rollstream.sampler.serving.given_sampler import a_sampler
from rollstream.sampler.serving.left_over import LeftOver
from rollstream.sampler.shaping.batch import Batch
from rollstream.sampler.shaping.beyond_float32 import groups_beyond_float32, named
from rollstream.sampler.shaping.carried import CarriedGroup, Shaping, left_over
from rollstream.sampler.shaping.examples import Examples
from rollstream.sampler.shaping.makers.interface import BatchMaker, MadeBatch
from rollstream.sampler.shaping.makers.mixture import MixedBatch, StableMixtureBatchMaker
from rollstream.sampler.shaping.makers.rollouts import a_maker, examples_of, make_batch
from rollstream.sampler.shaping.requested import column_names
from rollstream.schemas.digest import combined
from rollstream.schemas.errors import RollstreamError
from rollstream.streams.folds.sampler.eligible import Accept

ID_DIGITS = 16  # Of what an id is made of besides the batch's own, which is unique in a root.
_log = logging.getLogger("rollstream.sampler")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class TrainingBatch:
    """A step's examples; the same step gives the same bytes, also after a crash.

    Attributes:
        batch: as it was recorded, with the groups that were carried.
        made: which of its trajectories are trained on.
        examples: these, in the order of ``made.trajectories``; segments of one trajectory follow
            one another, or are merged. With a maker that has nothing to train on it is empty.
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
    """The examples of each step, made by a ``BatchMaker`` from what the sampler serves.

    What the maker keeps for later steps is recorded with the next step, so that every step can be
    made again: after a crash, from another process, by another rank. What meanwhile is too old to
    be served is kept no longer. Ranks each make the whole step, which gives all the same, and train
    on their share of it. What the step before left over is known of one that the same maker made
    with the same ``batch_size``: after any other one, or one that is not held, nothing is carried,
    with a warning. Where files of it are lost, all is carried but their groups, which are recorded
    with the step; nothing, where one of those was sampled by several policies.

    Not to be shared between threads.

    Args:
        sampler: that serves; its steps are asked for through this object alone.
        maker: chooses. What it keeps is carried from step to step.
        num_groups: new groups a step; a step waits for as many.
        batch_size: trajectories a step, at most.
        accept: as ``next_batch`` has it.
        mix: likewise; None: as the maker wants it (``BatchMaker.mix``), and of a mixture that is
            its shares. Then a warning names environments of the sampler that the maker wants
            nothing of; who trains on a part of them gives ``mix``.
        columns: likewise.
        merge_turns: as ``Examples.of`` has it; how examples are made of what was chosen, so a step
            that was served may be asked for with it and without.

    Raises:
        InvalidRequest: a number below 1, what is no sampler or no maker, settings of a maker that
            JSON cannot hold, a mix of what the sampler does not serve, or a mixture has no maker
            for, or a ``batch_size`` of which a share is less than one trajectory.
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
        self._shaping = Shaping(
            settings=_settings(maker, self._batch_size),
            num_groups=groups,
            min_groups=groups,
            carried=None,
        )
        check_accept(accept)
        self._accept = accept
        self._columns = column_names(columns)
        self._merge_turns = truth("merge_turns", merge_turns)
        self._mix = mix_of(self._sampler, maker, mix)
        self._left = LeftOver(self._sampler, self._shaping.settings, self._left_by, tuple)
        self._made: RecordMade | None = None  # What was made last.
        self._lacked: set[str] = set()  # Environments, of which a warning has spoken.

    def next(self, step: SupportsIndex, *, timeout_s: float | None = None) -> TrainingBatch:
        """The examples of ``step``: the next one, or one that was served.

        Raises:
            RequestDiffers: the step was served for another maker, or with other arguments.
            MakerDiffers: the maker made another batch of the step before, here or elsewhere.
            SamplerError: whatever ``next_batch`` raises.
        """
        at = whole_number("step", step)
        batch, again = self._batch(at, self._left.deadline(timeout_s))
        self._left.decided(at)
        made = make_batch(self._maker, batch, self._batch_size)
        self._warn_of_lacking(at, made)
        _warn_of_beyond_float32(batch)
        stale = {"carried_stale": float(batch.carried_stale)}
        self._check_made(batch, made, again=again)
        metadata = {**self._maker.get_batch_metadata(made), **stale}
        self._left.remember(batch, left_over(batch, made.kept))
        examples = examples_of(batch, made, merge_turns=self._merge_turns)
        return TrainingBatch(batch=batch, made=made, examples=examples, metadata=metadata)

    def ack(self, training: TrainingBatch) -> None:
        """As ``SamplerApi.ack``, with what became of each trajectory: trained, kept or filtered.
        New groups none of which is trained on or kept give their capacity back to env workers. Then
        it records what the maker made, and raises ``MakerDiffers`` where another process made
        something else of the step."""
        if not isinstance(training, TrainingBatch):
            raise InvalidRequest(
                f"training is {training!r:.200}; give the TrainingBatch that next returned"
            )
        batch, made = training.batch, training.made
        outcomes = {"trained": made.trajectories, "kept": made.kept}
        self._sampler.ack(batch, outcomes=outcomes)
        self._record_made(self._what_was_made(batch, made))

    def create_and_store_batch(
        self,
        batch_size: SupportsIndex | None = None,
        *,
        step: SupportsIndex,
        timeout_s: float | None = None,
    ) -> str:
        """Makes the examples of ``step`` as ``next`` does, writes them under ``batches/``, and
        returns their id, with which ``stored_examples`` reads them. The file appears whole or not
        at all; repeating the call, from whatever process, returns the same id and leaves the file
        as it is.

        Args:
            batch_size: of these batches, where it is given.
            step: as ``next`` has it.

        Raises:
            InvalidRequest: another ``batch_size``: what a step keeps follows from it.
            StoreFull, StoreError: the file could not be written.
            SamplerError: whatever ``next`` raises.
        """
        if batch_size is not None and whole_number("batch_size", batch_size) != self._batch_size:
            raise InvalidRequest(
                f"batch_size is {batch_size}, and these batches are made with {self._batch_size}; "
                "leave it out, or make others with TrainingBatches(…, batch_size=…)"
            )
        training = self.next(step, timeout_s=timeout_s)
        batch = training.batch
        made_of = [batch.digest, self._shaping.settings.encode(), repr(batch.columns).encode()]
        if self._merge_turns:
            made_of.append(b"merge_turns")
        examples_id = f"{batch.batch_id}-{combined(made_of).hex()[:ID_DIGITS]}"
        about = {
            "step": batch.step,
            "batch_id": batch.batch_id,
            "digest": batch.digest.hex(),
            "settings": json.loads(self._shaping.settings),
            "metadata": dict(training.metadata),
        }
        store_examples(self._sampler.store, examples_id, training.examples, about)
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

    def _batch(self, step: int, deadline: Deadline) -> tuple[Batch, bool]:
        """The recorded batch, and whether it is known to have been served before: of a step that
        was served as it was, else with what is left over."""
        if step > 0:
            with suppress(UnknownStep):  # It was not served.
                return self._ask(step, None, deadline), True
        carry = self._left.before(step, deadline)
        try:
            return self._ask(step, carry.groups, deadline, carry.lost), False
        except CarryLost as why:
            self._left.lose(why)
            return self._ask(step, (), deadline), False
        except GroupsUnreadable:
            self._left.forget()  # Files are lost that were there when the step before was made.
            raise

    def _what_was_made(self, batch: Batch, made: MadeBatch) -> RecordMade:
        name = self._maker.settings.get("maker")
        maker = name if isinstance(name, str) else type(self._maker).__qualname__
        return RecordMade(
            step=batch.step, batch_id=batch.batch_id, maker=maker, digest=made.digest()
        )

    def _check_made(self, batch: Batch, made: MadeBatch, *, again: bool) -> None:
        """Compares with what was made of the batch before: here, and where it was served before,
        elsewhere. Of a new batch that is recorded with the ack, so that no step waits for it."""
        one, before = self._what_was_made(batch, made), self._made
        if before is not None and before.batch_id == one.batch_id:
            one.check(before.digest)
        if again:
            self._record_made(one)
        self._made = one

    def _record_made(self, made: RecordMade) -> None:
        """Raises ``MakerDiffers``. Where no broker answers, this check alone is lost."""
        try:
            self._sampler._ask(made)
        except MakerDiffers:
            raise
        except RollstreamError as error:
            _log.info("what step %d was made of is not compared: %s", made.step, error)

    def _left_by(self, batch: Batch) -> tuple[CarriedGroup, ...]:
        return left_over(batch, make_batch(self._maker, batch, self._batch_size).kept)

    def _ask(
        self,
        step: int,
        carried: tuple[CarriedGroup, ...] | None,
        deadline: Deadline,
        lost: Mapping[str, str] | None = None,
    ) -> Batch:
        return self._sampler.next_shaped_batch(
            step,
            replace(self._shaping, carried=carried, lost=lost or {}),
            timeout_s=deadline.left_s(),
            accept=self._accept,
            mix=self._mix,
            columns=self._columns,
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
