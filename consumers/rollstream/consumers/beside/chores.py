"""Jobs that nobody waits for, beside the loop: each now and then, one at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any

from rollstream.consumers.beside.backoff import Backoff, described
from rollstream.consumers.beside.context import OwnerContext
from rollstream.consumers.beside.lasting import Lasting
from rollstream.consumers.beside.threads import InlineExecutor
from rollstream.runtime.clock import Clock
from rollstream.runtime.deadline import Deadline
from rollstream.store import StoreError
from rollstream.streams.errors import BrokerUnavailable

IN_LOOP = InlineExecutor()
LOOK_EVERY_S = 0.1  # How often a chore that has nothing to do is asked again.
HANGS = (
    "the job {!r} has not ended since {}, and what is due after it waits: does the store hang (an "
    "NFS mount, a dying disk)? Mend it, then start this sealer again"
)
NOT_ASKED = "the log was not asked, since others wait for leaders that are silent"
FAILS = "the job {!r} fails since {}, and is tried again: {}"

# Begins what uses the partition's log. The loop calls it once nothing else uses the log.
LogStep = Callable[[], Future[Any]]
# Yields log steps and futures, and gets their results; None: a future had none by the deadline.
# Returns in how many seconds the next job is due.
Job = Generator[LogStep | Future[Any], Any, float]


@dataclass(slots=True)
class Chore:
    """What is done again and again.

    Attributes:
        begin: called by the loop when it is due; returns the job, or None: nothing to do so far,
            so it is called again after ``LOOK_EVERY_S``. The deadline is of one turn of the job:
            from a ``yield`` to the next.
        runs_in: runs the turns.
        timeout_s: of a turn.
        due_s: by the monotonic clock.
        again_s: how long it waits at least after a failure.
    """

    name: str
    begin: Callable[[Deadline], Job | Callable[[], float] | None]
    runs_in: Executor
    timeout_s: float
    due_s: float = 0.0
    again_s: float = 0.0


_Running = tuple[Chore, Job | Callable[[], float], Deadline]


class Chores:
    """Runs chores, one job at a time. A job that fails is begun again, at growing intervals; the
    other chores have their turns meanwhile. Only the loop calls it.

    Args:
        of: what they are done for, in logs.
        raises: whether ``advance`` raises what fails a job, but for ``BrokerUnavailable`` and
            ``StoreError``.
    """

    def __init__(
        self, of: str, clock: Clock, chores: Sequence[Chore], *, raises: bool = False
    ) -> None:
        self._of = of
        self._clock = clock
        self._chores = chores
        self._raises = raises
        self._backoffs = {chore.name: Backoff(clock) for chore in chores}
        self._running: _Running | None = None
        self._turn: Future[LogStep | Future[Any] | float] = Future()
        self._step: Future[Any] | None = None  # That the job yielded.
        self._lasting = Lasting(clock)
        self._newest: Chore | None = None  # Of which a turn was begun.
        self._uses_log = False

    def advance(self) -> Future[Any] | None:
        """Goes on without waiting; returns a log step that was begun. It is called again once that
        is done."""
        self._lasting.look(self._turn)
        running = self._running or self._begin_next()
        if running is None:
            return None
        chore, _, deadline = running
        if self._step is not None:
            done = self._step.done()
            if not done and (self._uses_log or not deadline.passed()):
                return None
            self._begin_turn(running, self._step if done else None)
        if self._turn.done():
            return self._end_turn(chore)
        return None

    def hanging(self) -> str:
        """Which job has not ended by its deadline, in words; empty: none. It is so until the turn
        ends, also where the job was abandoned."""
        self._lasting.look(self._turn)
        chore = self._newest
        if chore is None or not (self._lasting.runs and self._lasting.is_long(chore.timeout_s)):
            return ""
        return HANGS.format(chore.name, self._lasting.since)

    def unended(self) -> str:
        """The job that runs now, in words; empty: none does."""
        chore = self._newest
        if chore is None or not self._turn.running():
            return ""
        return f"the job {chore.name!r} of {self._of}"

    def trouble(self) -> str:
        """Which job has not ended by its deadline, or fails again and again, in words; empty: none.
        A broker that does not answer is told by others."""
        failing = (
            FAILS.format(name, backoff.since, described(backoff.error)[0])
            for name, backoff in self._backoffs.items()
            if backoff.is_trouble()
            and backoff.error is not None
            and not isinstance(backoff.error, BrokerUnavailable)
        )
        return self.hanging() or next(failing, "")

    def hurry(self) -> None:
        """All are due now; one is begun, unless a job runs."""
        for chore in self._chores:
            chore.due_s = 0.0
        self.advance()

    def finish(self, timeout_s: float) -> bool:
        """Drops the job; whether its turn ends within ``timeout_s``."""
        has_ended = self._running is None or self._turn.cancel()
        return has_ended or not wait([self._turn], timeout_s).not_done

    def abandon(self) -> Future[Any] | None:
        """Drops the job; returns the turn that runs, if any. It ends soon, since its deadline has
        passed, unless it hangs."""
        self._turn.cancel()
        if self._running is not None:
            self._running[2].end()
            self._running = None
        return self._turn if self._turn.running() else None

    def _begin_next(self) -> _Running | None:
        now_s = self._clock.monotonic_s()
        for chore in self._chores:
            if now_s < chore.due_s or self._backoffs[chore.name].active():
                continue
            deadline = Deadline(chore.timeout_s, self._clock)
            try:
                job = chore.begin(deadline)
            except Exception as error:  # noqa: BLE001, sealing goes on
                self._fail(chore, error)
                continue
            if job is None:
                self._backoffs[chore.name].reset()  # Nothing is left that may fail.
                chore.due_s = now_s + LOOK_EVERY_S
                continue
            chore.due_s = math.inf
            self._running = chore, job, deadline
            self._begin_turn(self._running, None)
            break
        return self._running

    def _begin_turn(self, running: _Running, step: Future[Any] | None) -> None:
        chore, job, deadline = running
        self._step, self._newest = None, chore
        self._turn = chore.runs_in.submit(_run_turn, job, step, deadline)

    def _end_turn(self, chore: Chore) -> Future[Any] | None:
        try:
            step = self._turn.result()
        except Exception as error:  # noqa: BLE001, sealing goes on
            self._fail(chore, error)
            return None
        if isinstance(step, float):
            self._running = None
            chore.due_s = min(chore.due_s, self._clock.monotonic_s() + step)
            self._backoffs[chore.name].reset()
            return None
        self._uses_log = not isinstance(step, Future)
        self._step = step if isinstance(step, Future) else step()
        return self._step if self._uses_log else None

    def _fail(self, chore: Chore, error: Exception) -> None:
        self._running, chore.due_s = None, self._clock.monotonic_s() + chore.again_s
        if self._raises and not isinstance(error, BrokerUnavailable | StoreError):
            raise error
        self._backoffs[chore.name].record_failure(f"{self._of}: {chore.name}", error)


def first_trouble(*tellers: Callable[[], str]) -> str:
    """Returns in words the first trouble that any of them tells; empty: none does."""
    return next(filter(None, (tell() for tell in tellers)), "")


def asking_log(
    context: OwnerContext, ask: Callable[[Deadline], None]
) -> Generator[LogStep, Any, None]:
    """A log step that asks. No answer in time fails the job, and not the partition; so does a
    flush that was due before a thread was free to ask.

    Raises:
        BrokerUnavailable. What else ``ask`` raises, the partition is told too.
    """
    error = yield partial(context.threads.lookers.submit, unanswered, ask, context)
    if error is not None:
        raise error


def unanswered(ask: Callable[[Deadline], None], context: OwnerContext) -> BrokerUnavailable | None:
    """Asks a log; returns the error if it did not answer within ``ask_s``."""
    try:
        ask(Deadline(context.ask_s, context.clock))
    except BrokerUnavailable as error:
        return error
    return None


def _run_turn(
    job: Job | Callable[[], float], step: Future[Any] | None, deadline: Deadline
) -> LogStep | Future[Any] | float:
    """What the job yields next, or returns."""
    deadline.restart()  # It may have waited for other jobs.
    if callable(job):
        return job()
    try:
        if step is None:
            return next(job)
        error = BrokerUnavailable(NOT_ASKED) if step.cancelled() else step.exception()
        return job.send(step.result()) if error is None else job.throw(error)
    except StopIteration as ended:
        return float(ended.value)
