"""The batch that will likely be asked for next, made while the trainer trains."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from rollstream.runtime.clock import Clock
from rollstream.sampler.deciding.batches import NextBatch
from rollstream.sampler.deciding.command import Command
from rollstream.sampler.serving.payloads import SOON_BATCHES, Payloads
from rollstream.sampler.shaping.assembled import AssembledBatch
from rollstream.sampler.shaping.share import Share
from rollstream.schemas.errors import RollstreamError
from rollstream.streams.folds.refs import GroupRef

AFTER_S = 0.01  # By then the batch that was made last is on its way to who asked for it.
IDLE_FACTOR = 1  # What arrives makes it anew in half of the time at most,
AGAIN_MAX = 64  # and so often: a trainer that asks for nothing costs nothing.
_Keep = Callable[[AssembledBatch], AssembledBatch]


class _Made(NamedTuple):
    share: Share
    batch: AssembledBatch
    size: int

    @property
    def step(self) -> int:
        return self.share.served.event.step

    @property
    def digest(self) -> bytes:
        return self.share.served.digest


class MakesAhead:
    """Makes, in a thread of its own, the shares that the next decision would likely have, once a
    batch was handed out, and anew where groups came since that change them.

    It decides nothing: a share is handed out for a decision that chose its very groups, and is
    discarded otherwise; every byte was checked as for any other. It begins where many more groups
    are ready than a batch has and the store is local, and pauses where it was in vain. What it
    holds counts among the bytes that the payloads hold.

    Args:
        likely: what the decision after a command's would have now.
        keep: where the bytes of what was made are to lie.
    """

    def __init__(
        self,
        payloads: Payloads,
        likely: Callable[[NextBatch], Sequence[Share]],
        keep: _Keep,
        clock: Clock,
    ) -> None:
        self._payloads = payloads
        self._likely = likely
        self._keep = keep
        self._clock = clock
        self._lock = threading.Lock()  # Of what was made; never held while anything is read.
        self._made: list[_Made] = []
        self._after: NextBatch | None = None
        self._again_left = 0
        self._served: list[Share] = []  # Handed out, which the payloads do not know yet.
        self._released = 0  # Bytes of what was handed out or discarded.
        self._from_step = 0
        self._wake, self._handed_out = threading.Event(), threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, share: Share) -> AssembledBatch | None:
        """The share with its rows, where just these were made; None: they are to be read."""
        with self._lock:
            for made in self._made:
                if made.share.has_same_rows(share):
                    break
            else:
                self._discard_for(share)
                return None
            if made.batch.buffer.flags.writeable:  # By the trainer, too: it is handed out once.
                self._made.remove(made)
                self._released += made.size
            self._served.append(share)
        self._payloads.note_readable(share.served)
        return made.batch.decided(share.served, share.groups_ready)

    def handed_out(self, command: Command[Any], share: Share) -> None:
        """The share is on its way to who asked for it; what follows it may be made."""
        if not isinstance(command, NextBatch) or command.dp_rank:
            return
        step = command.step + 1
        many = share.groups_ready > SOON_BATCHES * len(share.paths)
        if many and self._payloads.local and step >= self._from_step:
            self._after, self._again_left = command, AGAIN_MAX
        else:
            self._after = None
            if not (self._served or self._released):
                return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="read-ahead", daemon=True)
            self._thread.start()
        self._handed_out.set()
        self._wake.set()

    def changed(self) -> None:
        """Groups came: what would be chosen may be others."""
        if self._after is not None and self._again_left:
            self._again_left -= 1
            self._wake.set()

    def close(self) -> None:
        """Ends the thread. Idempotent."""
        self._closing.set()
        self._handed_out.set()
        self._wake.set()

    def _run(self) -> None:
        while not self._closing.is_set():  # Set before it is woken: no clearing hides it.
            self._wake.wait()
            if self._closing.wait(AFTER_S):
                return
            self._wake.clear()
            self._handed_out.clear()
            begun_s = self._clock.monotonic_s()
            with suppress(RollstreamError):  # Whoever asks for the batch is told.
                self._make()
            self._handed_out.wait(IDLE_FACTOR * (self._clock.monotonic_s() - begun_s))

    def _make(self) -> None:
        with self._lock:
            served, self._served = self._served, []
            released, self._released = self._released, 0
        self._payloads.note_served(served, released)
        command = self._after
        shares = [] if command is None else self._likely(command)
        if not shares:
            return
        with self._lock:
            if any(made.share.has_same_rows(shares[0]) for made in self._made):
                return
            self._discard_for(shares[0])
        step, columns = shares[0].served.event.step, shares[0].columns
        slotted = sorted(pair for share in shares for pair in share.groups)
        parts = self._payloads.read_ahead(step, slotted, columns)
        if parts is None:
            return
        for share in shares:
            mine = [parts[slot] for slot, _ in share.groups]
            batch = share.assembled(mine, self._payloads.token_arrays)
            if not self._payloads.hold_beside(size := batch.buffer.nbytes):
                return
            made = _Made(share, self._keep(batch), size)
            with self._lock:
                self._made.append(made)

    def _discard_for(self, share: Share) -> None:
        """Discards what was made for earlier steps than the share's, and for this one where the
        decision is another; where that has few of the groups, the next steps are not tried."""
        step, of_others = share.served.event.step, set[GroupRef]()
        for made in [*self._made]:
            if made.step < step or (made.step == step and made.digest != share.served.digest):
                self._made.remove(made)
                self._released += made.size
                if made.step == step:
                    of_others.update(group.ref for _, group in made.share.groups)
        if of_others and 2 * sum(g.ref in of_others for _, g in share.groups) < len(share.groups):
            self._from_step = step + SOON_BATCHES
