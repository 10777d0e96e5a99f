"""The batch that will likely be asked for next, made while the trainer trains; of a shaped one, its
new groups read."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from rollstream.runtime.clock import Clock
from rollstream.sampler.batch.assembled import AssembledBatch, assemble
from rollstream.sampler.batch.share import Share
from rollstream.sampler.decide.batches.next_batch import NextStep
from rollstream.sampler.decide.batches.shaped import NextShapedBatch
from rollstream.sampler.decide.command import Command
from rollstream.sampler.rows.payloads import SOON_BATCHES, Payloads
from rollstream.schemas.errors import RollstreamError

AFTER_S = 0.01  # By then the batch that was made last is on its way to who asked for it.
IDLE_FACTOR = 1  # What arrives makes it anew in half of the time at most,
AGAIN_MAX = 64  # and so often: a trainer that asks for nothing costs a look at what arrives.
LOG_EVERY_S = 60.0  # A defect that goes on is logged so often.
_log = logging.getLogger("rollstream.sampler")
_Keep = Callable[[AssembledBatch], AssembledBatch]


@dataclass(slots=True, eq=False)
class _Made:
    share: Share
    batch: AssembledBatch
    size: int
    taken: bool = False

    @property
    def step(self) -> int:
        return self.share.decided.step

    @property
    def digest(self) -> bytes:
        return self.share.decided.digest


class MakesAhead:
    """Makes, in a thread of its own, the shares that the next decision would likely have, once a
    batch was handed out, and anew where groups came since that change them.

    It decides nothing: a share is handed out for a decision that chose its very groups, and is
    discarded otherwise; every byte was checked as for any other. What a shaped step carries only
    who shapes it knows, once it has the step before. So of a shaped one the new groups are read and
    held in the cache, where those of the step before are. It begins where many more groups
    are ready than a batch has and the store is local, and pauses where it was in vain. What it
    holds counts among the bytes that the payloads hold.

    Args:
        likely: what the decision after a command's would have now.
        keep: where the bytes of what was made are to lie.
    """

    def __init__(
        self,
        payloads: Payloads,
        likely: Callable[[NextStep], Sequence[Share]],
        keep: _Keep,
        clock: Clock,
    ) -> None:
        self._payloads = payloads
        self._likely = likely
        self._keep = keep
        self._clock = clock
        self._lock = threading.Lock()  # Of what was made; never held while anything is read.
        self._made: dict[Hashable, _Made] = {}  # By what rows they have.
        self._likely_shares: Sequence[Share] = ()  # What was made last, or is being made.
        self._after: NextStep | None = None
        self._again_left = 0
        self._served: list[Share] = []  # Handed out, which the payloads do not know yet.
        self._released = 0  # Bytes of what was handed out or discarded.
        self._from_step = 0  # Before which nothing is made.
        self._compared = (-1, b"")  # The decision that was compared with what was likely.
        self._logged_s: float | None = None
        self._wake, self._handed_out = threading.Event(), threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def has_made(self, step: int, digest: bytes) -> bool:
        """Whether shares of a batch of this step with this digest were made."""
        with self._lock:
            return any((made.step, made.digest) == (step, digest) for made in self._made.values())

    def take(self, share: Share) -> AssembledBatch | None:
        """The share with its rows, where just these were made; None: they are to be read. Raises
        ``BatchUnsettled``."""
        with self._lock:
            made = self._made.get(share.rows)
            if made is None:
                self._discard_for(share)
                return None
            made.taken = True
            if made.batch.buffer.flags.writeable:  # By the trainer, too: it is handed out once.
                self._discard(made)
            self._served.append(share)
        self._payloads.handed_out.add(share.decided)
        return replace(made.batch, decided=share.decided, groups_ready=share.groups_ready)

    def handed_out(self, command: Command[Any], share: Share) -> None:
        """The share is on its way to who asked for it; what follows it may be made."""
        if not isinstance(command, NextStep) or command.dp_rank:
            return
        step = command.step + 1
        with self._lock:
            # A trainer that went back to an earlier step; peers may be one apart without.
            if step + SOON_BATCHES < self._from_step:
                self._from_step = 0
            for made in [made for made in self._made.values() if made.step > step + 1]:
                self._discard(made)
        many = share.groups_ready > SOON_BATCHES * len(share.decided.paths)
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
            try:
                with suppress(RollstreamError):  # Whoever asks for the batch is told.
                    self._make()
            except Exception:  # noqa: BLE001 - whatever it is, the next one is tried
                if self._logged_s is None or begun_s - self._logged_s >= LOG_EVERY_S:
                    self._logged_s = begun_s
                    _log.exception("no batch could be made before it was asked for")
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
            known = {*self._made}
            if isinstance(command, NextShapedBatch):
                known = {share.rows for share in self._likely_shares}
            if shares[0].rows in known:
                return
            self._discard_for(shares[0])
            self._likely_shares = shares
        self._again_left -= 1
        step, columns = shares[0].decided.step, shares[0].columns
        slotted = sorted(pair for share in shares for pair in share.groups)
        parts = self._payloads.read_ahead(step, slotted, columns)
        if parts is None or isinstance(command, NextShapedBatch):
            return
        for share in shares:
            mine = [parts[slot] for slot, _ in share.groups]
            batch = self._keep(assemble(share, mine, self._payloads.token_arrays))
            if not self._payloads.hold_beside(size := batch.buffer.nbytes):
                return
            with self._lock:
                self._made[share.rows] = _Made(share, batch, size)

    def _discard_for(self, share: Share) -> None:
        """Discards what was made for this step where the decision is another, and for earlier ones;
        of the one before, only what was handed out: its other ranks may come yet. Where few of the
        groups were expected, the next steps are not tried."""
        step, digest = share.decided.step, share.decided.digest
        for made in [*self._made.values()]:
            earlier = made.step < step and (made.taken or made.step < step - 1)
            if earlier or (made.step == step and made.digest != digest):
                self._discard(made)
        if self._compared == (step, digest):
            return
        self._compared = step, digest
        expected = {
            group.ref
            for one in self._likely_shares
            if one.decided.step == step and one.decided.digest != digest
            for _, group in one.groups
        }
        new = [group.ref for slot, group in share.groups if slot not in share.carried]
        if expected and 2 * sum(ref in expected for ref in new) < len(new):
            self._from_step = step + SOON_BATCHES

    def _discard(self, made: _Made) -> None:
        del self._made[made.share.rows]
        self._released += made.size
