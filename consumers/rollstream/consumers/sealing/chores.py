"""Jobs that nobody waits for, beside the loop: each now and then, one at a time."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any

from rollstream.consumers.sealing.backoff import Backoff
from rollstream.consumers.sealing.context import SealerContext
from rollstream.consumers.sealing.threads import InlineExecutor
from rollstream.runtime.clock import Clock
from rollstream.runtime.deadline import Deadline
from rollstream.streams.errors import BrokerUnavailable

IN_LOOP = InlineExecutor()
_log = logging.getLogger("rollstream.sealer")

# Begins what uses the partition's log. The loop calls it once nothing else uses the log.
LogStep = Callable[[], Future[Any]]
# Yields log steps and futures, and gets their results; None: a future had none by the deadline.
# Returns in how many seconds the next job is due.
Job = Generator[LogStep | Future[Any], Any, float]


@dataclass(slots=True)
class Chore:
    """What is done again and again.

    Attributes:
        begin: called by the loop when it is due; returns the job, or None: nothing to do so far.
            The deadline is of one turn of the job: from a ``yield`` to the next.
        runs_in: runs the turns.
        timeout_s: of a turn.
        due_s: by the monotonic clock.
    """

    name: str
    begin: Callable[[Deadline], Job | Callable[[], float] | None]
    runs_in: Executor
    timeout_s: float
    due_s: float = 0.0


_Running = tuple[Chore, Job | Callable[[], float], Deadline]


class Chores:
    """Runs chores, one job at a time. A job that fails is begun again, at growing intervals; the
    other chores have their turns meanwhile. Only the loop calls it.

    Args:
        of: what they are done for, in logs.
        raises: whether ``advance`` raises what fails a job, but for ``BrokerUnavailable``.
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
        self._uses_log = self._is_late = False

    def advance(self) -> Future[Any] | None:
        """Goes on without waiting; returns a log step that was begun. It is called again once that
        is done."""
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
        if self._turn.running() and deadline.passed() and not self._is_late:
            self._is_late = True
            _log.warning(
                "%s: %s has not ended within %g s, and what is due after it waits",
                *(self._of, chore.name, chore.timeout_s),
            )
        return None

    def hurry(self) -> None:
        """All are due now; one is begun, unless a job runs."""
        for chore in self._chores:
            chore.due_s = 0.0
        self.advance()

    def finish(self, timeout_s: float) -> bool:
        """Drops the job; whether its turn ends within ``timeout_s``."""
        has_ended = self._running is None or self._turn.cancel()
        return has_ended or not wait([self._turn], timeout_s).not_done

    def abandon(self) -> None:
        """Drops the job; a turn that runs ends soon, since its deadline has passed."""
        self._turn.cancel()
        if self._running is not None:
            self._running[2].end()
            self._running = None

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
            if job is not None:
                chore.due_s = math.inf
                self._running = chore, job, deadline
                self._begin_turn(self._running, None)
                break
        return self._running

    def _begin_turn(self, running: _Running, step: Future[Any] | None) -> None:
        chore, job, deadline = running
        self._step, self._is_late = None, False
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
        self._running, chore.due_s = None, 0.0
        if self._raises and not isinstance(error, BrokerUnavailable):
            raise error
        self._backoffs[chore.name].record_failure(f"{self._of}: {chore.name}", error)


def asking_log(
    context: SealerContext, ask: Callable[[Deadline], None]
) -> Generator[LogStep, Any, None]:
    """A log step that asks. No answer in time fails the job, and not the partition.

    Raises:
        BrokerUnavailable. What else ``ask`` raises, the partition is told too.
    """
    error = yield partial(context.threads.claimers.submit, _unanswered, ask, context)
    if error is not None:
        raise error


def _unanswered(
    ask: Callable[[Deadline], None], context: SealerContext
) -> BrokerUnavailable | None:
    try:
        ask(context.deadline())
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
        error = step.exception()
        return job.send(step.result()) if error is None else job.throw(error)
    except StopIteration as ended:
        return float(ended.value)
