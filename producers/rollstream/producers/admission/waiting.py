"""Waits for admission: a thread an environment, while anybody waits, serves all that do."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from rollstream.producers.admission.asking import Wait
from rollstream.producers.admission.log import AdmissionLog
from rollstream.producers.admission.policies import Wanted
from rollstream.producers.admission.shares import Allowance, Limit
from rollstream.producers.admission.standing import Request, Standing
from rollstream.producers.errors import (
    NotAdmitted,
    ProducerDied,
    RunOver,
    SeveralLineages,
    TooManyGroups,
    counted,
)
from rollstream.runtime.clock import Clock
from rollstream.runtime.deadline import LOG_WAITING_EVERY_S, Deadline
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.events import SharesGranted
from rollstream.streams.errors import BrokerUnavailable, UnknownTopic

GRANTED_AFTER_S = 1.0  # A sampler looks four times a second what to grant.
_LOOK_S = 1.0  # How late those that wait take their turns.
_log = logging.getLogger("rollstream.admission")


@dataclass(eq=False)
class AdmissionQueue:
    """Admits the groups of one environment. Threads and coroutines share it.

    It keeps no producer alive.

    Args:
        environment: for messages.
        lineage: whose samplers count; None: that of the only model in training.
        allowance: what samplers grant the producer.
        standing: what the producer has begun, and who waits.
        admission_log: where samplers grant it.
        clock: the one that the log was given.

    Attributes:
        was_read: whether it is known what was granted so far.
    """

    _environment: str
    _lineage: str | None
    _allowance: Allowance
    _standing: Standing
    _admission_log: AdmissionLog
    _clock: Clock
    was_read: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _seen: int = 0
    _is_served: bool = False  # Whether the thread runs.
    _said_s: float = 0.0  # When it was last logged that somebody waits.
    _refusal: RollstreamError | None = None
    _granted_by: Deadline | None = None  # Until then the first shares are waited for.

    async def wait_for_shares(self, seen: int, wait: Wait, deadline: Deadline) -> None:
        """Returns once a request may be made. A sampler whose policy is known, and no shares,
        grants some at once, or never will: else all that wait for the first policy would begin
        groups.

        Args:
            seen: what was read so far is all that the log held.
            wait: as ``AdmissionLog.wait``.
            deadline: of the call that begins groups.

        Raises:
            BrokerUnavailable, NotAuthorised: the broker's answer, or none in time. SeveralLineages.
        """
        if self._granted_by is None:  # The next call goes on where the time of this one is up.
            self._granted_by = Deadline(GRANTED_AFTER_S, self._clock)
        while not self._granted_by.passed():
            known = {one.lineage for one in self._admission_log.policies().values()}
            granted = {one.shares.lineage for one in self._admission_log.shares().values()}
            if (known if self._lineage is None else known & {self._lineage}) <= granted:
                break
            if deadline.passed():
                raise BrokerUnavailable(
                    f"the samplers of environment {self._environment!r} did not say within "
                    f"{deadline.timeout_s:g} s how many groups may be begun; ask again"
                )
            try:
                seen = await wait(seen, deadline.slice_s(self._granted_by.left_s()))
            except UnknownTopic:
                break
        with self._lock:
            self.was_read, self._seen = True, max(self._seen, seen)
            self._limit(self._clock.monotonic_s())

    def ask(self, groups: int, group: str, wake: Callable[[], object]) -> Request:
        """A request, admitted or waiting; call ``end`` or ``conclude`` in any case.

        Raises:
            ProducerClosed, ForkedProducer, ProducerDied: nothing is admitted any more.
            TooManyGroups: so many can never be open. SeveralLineages.
        """
        with self._lock:
            if self._refusal is not None:
                raise self._refusal
            now_s = self._clock.monotonic_s()
            request, limit = Request(groups, group, wake, now_s), self._limit(now_s)
            if limit.most is not None and groups > limit.most.most:
                raise self._too_many(groups, limit.most)
            if self._standing.waiting:
                self._serve_those_that_wait(limit, now_s)
            self._standing.ask(request, limit, now_s)
            if request.waits and not self._is_served:
                self._is_served = True
                name = "rollstream-admission-waits"
                threading.Thread(target=self._run, name=name, daemon=True).start()
        return request

    def conclude(self, request: Request, timeout_s: float) -> None:
        """The request was woken, or its time is up: returns where it was admitted.

        Raises:
            NotAdmitted: it still waits, and is withdrawn. What ended its wait. SeveralLineages.
        """
        with self._lock:
            now_s = self._clock.monotonic_s()
            limit = self._limit(now_s)
            self._serve_those_that_wait(limit, now_s)
            if request.waits:
                error = self._not_admitted(request, timeout_s, limit, now_s)
                self._end(request, 0)
                raise error
            if request.error is not None:
                raise request.error

    def end(self, request: Request, begun: int) -> None:
        """Its block has ended, or it waits no longer; so many of its groups were begun, the others
        are given back."""
        with self._lock:
            self._end(request, begun)

    def tells(self, *, ends: bool = False) -> tuple[bool, float]:
        """As ``Standing.tells``."""
        with self._lock:
            return self._standing.tells(self._clock.monotonic_s(), ends=ends)

    def refuse(self, error: RollstreamError) -> None:
        """Ends all waits with this, and every later request."""
        with self._lock:
            self._refusal = error
            self._standing.refuse(lambda _: error)

    def renew_lock(self) -> None:
        """Runs in a forked child: of the parent's threads, one may have held the lock."""
        self._lock = threading.Lock()

    def _run(self) -> None:
        try:
            while (wait_s := self._serve()) is not None:
                try:
                    self._seen = self._admission_log.wait(self._seen, wait_s)
                except BrokerUnavailable as outage:
                    _log.debug("%s", outage)  # Shares run out meanwhile.
        except Exception as error:  # noqa: BLE001, whatever it is, those that wait get it
            with self._lock:
                self._is_served = False
                known = error if isinstance(error, RollstreamError) else ProducerDied.of(error)
                self._standing.refuse(lambda _: known)

    def _serve(self) -> float | None:
        """Admits those that may begin; in how many seconds to look again, None where none waits."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            limit = self._limit(now_s)
            if limit.most is not None:
                self._standing.refuse(partial(self._too_many, by=limit.most), limit.most.most)
            self._serve_those_that_wait(limit, now_s)
            if not self._standing.waiting:
                self._is_served = False
                return None
            self._log_waiting(limit, now_s)
            return min(max(0.0, limit.changes_s - now_s), _LOOK_S)

    def _serve_those_that_wait(self, limit: Limit, now_s: float) -> None:
        """Admits those that may begin. Ends the waits if the run is over: nobody would train on
        what they begin."""
        if limit.groups is None and self._standing.waiting:
            try:
                log = self._admission_log
                Wanted(self._environment, self._lineage, None).among(log.policies, log.ended)
            except RunOver as over:
                error = over
                self._standing.refuse(lambda _: error)
                return
        self._standing.serve(limit, now_s)

    def _end(self, request: Request, begun: int) -> None:
        self._standing.end(request, begun)
        if self._standing.waiting:
            now_s = self._clock.monotonic_s()
            with suppress(SeveralLineages):  # Those that wait are told by who serves them.
                self._serve_those_that_wait(self._limit(now_s), now_s)

    def _limit(self, now_s: float) -> Limit:
        return self._allowance.limit(self._admission_log.shares(), self._standing.used, now_s)

    def _log_waiting(self, limit: Limit, now_s: float) -> None:
        """One line for all that wait, every 30 s: there may be thousands."""
        first = next(iter(self._standing.waiting))
        waited_s = now_s - first.since_s
        if min(waited_s, now_s - self._said_s) >= LOG_WAITING_EVERY_S:
            self._said_s = now_s
            what = self._describe(self._standing.groups_waiting, limit, now_s)
            _log.warning("waited %.0f s so far %s", waited_s, what)

    def _describe(self, groups: int, limit: Limit, now_s: float) -> str:
        assert limit.by is not None, "nothing else limits it"
        shares, read_s = limit.by.shares, limit.by.read_s
        # A record is new when totals change; what is begun of them since then makes none.
        room = f"shared out room for {shares.capacity} among all producers when that last changed"
        room = room if shares.capacity else "had room for no more from any producer"
        by = f", by its {shares.limit}" if shares.limit else ""
        away = "" if limit.away_s is None else "; it is away, its shares have run out"
        outage = self._admission_log.outage()
        away += f"; what it grants cannot be read now: {outage}" if outage else ""
        return (
            f"to begin {counted(groups, 'group')} of {self._environment!r} beyond the "
            f"{self._standing.used} that this producer has begun or holds; sampler "
            f"{shares.sampler} allowed it {limit.groups} in all, {now_s - read_s:.0f} s ago; it "
            f"{room}{by}{away}"
        )

    def _too_many(self, groups: int, by: SharesGranted) -> TooManyGroups:
        return TooManyGroups(self._environment, groups, by.most, by.sampler)

    def _not_admitted(
        self, request: Request, timeout_s: float, limit: Limit, now_s: float
    ) -> NotAdmitted:
        assert limit.by is not None, "nothing else limits it"
        return NotAdmitted(
            self._describe(request.groups, limit, now_s),
            timeout_s,
            sampler=limit.by.shares.sampler,
            capacity=limit.by.shares.capacity,
            away_s=None if limit.away_s is None else now_s - limit.away_s,
            open_groups=self._standing.open_groups(),
        )
