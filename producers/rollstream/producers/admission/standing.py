"""How a producer stands with one environment: what it has begun, and who waits. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from rollstream.producers.admission.shares import Limit
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.ingest.entry import Producer

# A producer that counts is never silent for longer: a quarter of the time after which it is taken
# for dead.
ALIVE_S = 2.0
TELL_AGAIN_S = 1.0  # How soon it tells that another number of groups waits.


@dataclass(eq=False, slots=True)
class Request:
    """So many groups that somebody wants to begin.

    Attributes:
        groups: how many.
        group: one that is dispatched, in words; empty: what is published decides how many were
            begun, when the block ends.
        wake: called, on any thread, when it need not wait any longer.
        since_s: when it was made, by the monotonic clock.
        waits: whether it is neither admitted nor withdrawn.
        error: what ended its wait.
    """

    groups: int
    group: str
    wake: Callable[[], object]
    since_s: float
    waits: bool = False
    error: RollstreamError | None = None


class Standing:
    """Admits requests, first come, first served. Callers hold a lock, where threads share it.

    While there is no room for the first that waits, the others and it take turns. For a second
    nobody passes it; then those may that fit. Each later turn lasts as long as the first has waited
    until then. So the first is admitted within five times as long as its room takes to come free if
    nobody passes it, however little comes free at a time.

    Attributes:
        waiting: requests that wait, in their order.
        groups_waiting: of these together.
        open: requests that were admitted and whose block has not ended.
    """

    def __init__(self, producer_id: str) -> None:
        self.waiting: dict[Request, None] = {}
        self.groups_waiting = 0
        self.open: dict[Request, None] = {}
        self._producer_id = producer_id
        self._begun = 0
        self._held = 0  # By blocks that name no group: neither begun nor given back so far.
        self._told_s = 0.0  # When it last told anything of itself, by the monotonic clock.
        self._told_waiting = 0
        self._first: Request | None = None  # The one that waited first at the last look.
        self._first_s = 0.0  # Since when there was no room for it.

    @property
    def used(self) -> int:
        """How many groups of its total are begun or held."""
        return self._begun + self._held

    def says(self) -> Producer:
        """What its records say of it; needs no lock."""
        return Producer(self._producer_id, self._begun, self.groups_waiting)

    def ask(self, request: Request, limit: Limit, now_s: float) -> None:
        """Admits the request, or lets it wait."""
        if not self._may_pass(now_s) or not self._admit(request, limit, now_s):
            request.waits = True
            self.waiting[request] = None
            self.groups_waiting += request.groups

    def serve(self, limit: Limit, now_s: float) -> None:
        """Admits those that may begin, in the order in which they came."""
        while self.waiting and self._admit(first := next(iter(self.waiting)), limit, now_s):
            self._stop_waiting(first)
        if not self._may_pass(now_s):
            return
        for request in list(self.waiting):
            if limit.groups is not None and self.used >= limit.groups:
                return
            if self._admit(request, limit, now_s):
                self._stop_waiting(request)

    def refuse(self, error_of: Callable[[int], RollstreamError], most: int = 0) -> None:
        """Ends the waits of those that want more groups than that."""
        for request in [one for one in self.waiting if one.groups > most]:
            request.error = error_of(request.groups)
            self._stop_waiting(request)

    def end(self, request: Request, begun: int) -> None:
        """Its block has ended, or it waits no longer; so many of its groups were begun, the others
        are given back."""
        if request.waits:
            self._stop_waiting(request)
        elif request in self.open:
            del self.open[request]
            if request.group:
                self._begun -= request.groups
            else:
                self._held -= request.groups
            self._begun += min(begun, request.groups)

    def tells(self, now_s: float, *, ends: bool = False) -> tuple[bool, float]:
        """Whether it is to tell how it stands now, and in how many seconds next: while anything is
        open or waits, at once if something waits where nothing did, and once more if nothing does.

        Args:
            ends: it is the last time.
        """
        is_idle = ends or not (self.open or self.waiting)
        is_known = self.groups_waiting == self._told_waiting
        if is_idle and is_known:
            return False, inf
        again_s = ALIVE_S if is_known else TELL_AGAIN_S
        tells = ends or now_s >= self._told_s + again_s or not (is_known or self._told_waiting)
        if tells:
            self._told_s, self._told_waiting = now_s, self.groups_waiting
            if is_idle:
                return True, inf
        next_s = self._told_s + ALIVE_S - now_s
        return tells, min(next_s, TELL_AGAIN_S) if self.waiting or is_idle else next_s

    def open_groups(self) -> list[str]:
        """What the blocks that have not ended hold, in words."""
        return [one.group or f"{one.groups} by admit()" for one in self.open]

    def _admit(self, request: Request, limit: Limit, now_s: float) -> bool:
        if limit.groups is not None and self.used + request.groups > limit.groups:
            return False
        if request.group:
            self._begun += request.groups
            # The entry that dispatches it tells.
            self._told_s = now_s
            self._told_waiting = self.groups_waiting - (request.groups if request.waits else 0)
        else:
            self._held += request.groups
        self.open[request] = None
        return True

    def _may_pass(self, now_s: float) -> bool:
        """Whether a request may be admitted before the first that waits."""
        first = next(iter(self.waiting), None)
        if first is None:
            return True
        if first is not self._first:
            self._first, self._first_s = first, now_s
        turn = int(now_s - self._first_s).bit_length()  # The seconds from 2**(turn - 1) to 2**turn.
        return turn % 2 == 1

    def _stop_waiting(self, request: Request) -> None:
        del self.waiting[request]
        self.groups_waiting -= request.groups
        request.waits = False
        request.wake()
