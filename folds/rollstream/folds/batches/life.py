"""The life of a sampler's batches, from the events of its decision log. Pure.

=========  ==============================================  =======================
a batch    and then                                        becomes
=========  ==============================================  =======================
\\-          it is decided                                   ``served``
served     groups in it are replaced                       ``replaced``, as served
served     its trainer acks it                             ``acked``
any        a checkpoint, or a resume from one, has it      ``final``
any later  a resume serves it again                        ``replayed``, unacked
not final  a resume from before it releases it             ``released``, and gone
final      it is released, or too old to be asked for      ``forgotten``, and gone
=========  ==============================================  =======================
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, takewhile
from typing import Literal, NamedTuple

from rollstream.folds.batches.served import ServedBatch
from rollstream.schemas.events import (
    Acked,
    Adopted,
    BatchServed,
    Checkpointed,
    Claimed,
    CursorRecorded,
    Dropped,
    Event,
    Finished,
    Made,
    Replaced,
    Requested,
    Resumed,
)

_NONE = -1  # No step, no offset.
_DECIDES_NOTHING = Claimed | Adopted | Dropped | CursorRecorded | Requested | Made


State = Literal["served", "replaced", "acked", "final", "replayed", "released", "forgotten"]


class Became(NamedTuple):
    """A batch whose state changed.

    Attributes:
        state: as in the table.
        batch: as it is from now on; one that is gone, as it was last.
        before: as it was.
    """

    state: State
    batch: ServedBatch
    before: ServedBatch


class FinalTo(NamedTuple):
    """Every batch up to the step is final; each one ``became`` so before this.

    Attributes:
        releases: whether a resume releases all later ones, each of which is told after this.
    """

    step: int
    releases: bool


Change = Became | FinalTo


class BatchLife:
    """Holds the batches that are not final, and the newest final ones. Only ``apply`` changes it.

    Attributes:
        batches: by step, in order.
        next_step: the first step that was not served.
        served_end: after the last step that was served and not released.
        final_step: the newest step that ever was final; -1: none was.
        final_to: the newest step that is final and was not released since.
        over: whether the run was finished, and nothing was decided since.
        over_decided_at: offset of the decision that finished it, or began it again; -1: none did.
    """

    def __init__(self) -> None:
        self.batches: dict[int, ServedBatch] = {}
        self.next_step = self.served_end = 0
        self.final_step = self.final_to = self.over_decided_at = _NONE
        self.over = False

    def opened(self) -> list[ServedBatch]:
        """Those that are not final, which come after all that are."""
        return [*takewhile(lambda one: not one.final, reversed(self.batches.values()))][::-1]

    def apply(self, offset: int, event: Event, *, finals_kept: int = 0) -> Iterator[Change]:
        """Applies the next event of the decision log that counts, by rising offset, while it is
        iterated; yields what changed, each right after it did.

        Args:
            finals_kept: how many final batches are held.
        """
        if not isinstance(event, _DECIDES_NOTHING):
            over = isinstance(event, Finished)
            if over != self.over:
                self.over, self.over_decided_at = over, offset
        if isinstance(event, BatchServed):
            batch = ServedBatch.of(event, offset)
            self.next_step = self.served_end = event.step + 1
            yield self._become("served", batch, batch)
        elif isinstance(event, Checkpointed):
            yield from self._finish(event.step, finals_kept, releases=False)
        elif isinstance(event, Resumed):
            yield from self._resume(event, finals_kept)
        elif isinstance(event, Replaced | Acked | Made) and event.step in self.batches:
            before = self.batches[event.step]
            if isinstance(event, Replaced):
                yield self._become("replaced", before.replaced_by(event, offset), before)
            elif isinstance(event, Acked):
                yield self._become("acked", before.acked_by(event), before)
            elif before.batch_id == event.batch_id:
                self.batches[event.step] = replace(before, made=event.digest)

    def _become(self, state: State, batch: ServedBatch, before: ServedBatch) -> Became:
        self.batches[batch.event.step] = batch
        return Became(state, batch, before)

    def _leave(self, state: State, step: int) -> Became:
        batch = self.batches.pop(step)
        return Became(state, batch, batch)

    def _finish(self, step: int, finals_kept: int, *, releases: bool) -> Iterator[Change]:
        for batch in self.opened():
            if batch.event.step <= step:
                yield self._become("final", replace(batch, final=True), batch)
        self.final_step = max(self.final_step, step)
        self.final_to = step if releases else max(self.final_to, step)
        finals = len(self.batches) - len(self.opened())
        for at in list(islice(self.batches, max(0, finals - finals_kept))):
            yield self._leave("forgotten", at)
        yield FinalTo(step, releases)

    def _resume(self, event: Resumed, finals_kept: int) -> Iterator[Change]:
        saved = _NONE if event.checkpointed_step is None else event.checkpointed_step
        releases = event.later == "release"
        yield from self._finish(saved, finals_kept, releases=releases)
        for at, batch in list(self.batches.items()):
            if at <= saved:
                continue
            if not releases:
                again = replace(batch.unacked(), since_ts=event.now_ts)
                yield self._become("replayed", again, batch)
            else:
                yield self._leave("forgotten" if batch.final else "released", at)
        if releases:
            self.served_end = min(self.served_end, saved + 1)
        # Replayed are also those that are final and no longer held: the record has them.
        self.next_step = max(event.first_step, self.served_end)
