"""The threads of a sealer, beside its loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import Any, ParamSpec, Self, TypeVar

from rollstream.runtime.deadline import Deadline

WORKERS = 2  # They run flushes.
FAR_WORKERS = 8  # The same where they mostly wait for an object store.
CLAIMERS = 2  # They claim logs and read them, which may take long.
LOOKERS = 2  # They wait for brokers that may be silent.
ASKERS = 4  # They wait for answers of brokers, some of which may be silent.
WRITERS = 4  # They write files, for all flushes: mostly they wait for a disk.
_P = ParamSpec("_P")
_T = TypeVar("_T")


class InlineExecutor(Executor):
    """Runs each job at once, in the caller's thread; for simulations."""

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        future: Future[_T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - it is raised where the result is asked for.
            future.set_exception(error)
        return future


class Pool(Executor):
    """Threads that run jobs, whose end is waited for up to a deadline: a store may hang for ever.

    Args:
        threads: runs the jobs.
        ended: is set at the end of each job.
    """

    def __init__(self, threads: Executor, ended: threading.Event) -> None:
        self._threads = threads
        self._ended = ended
        self._running: set[Future[object]] = set()

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        job = self._threads.submit(fn, *args, **kwargs)
        self._running.add(job)  # type: ignore[arg-type]
        job.add_done_callback(self._on_end)
        return job

    def end(self, deadline: Deadline, *, cancel: bool = False) -> bool:
        """Takes no more jobs; whether those that were taken have ended by the deadline.

        Args:
            cancel: whether those that did not begin are dropped.
        """
        self._threads.shutdown(wait=False, cancel_futures=cancel)
        return not wait(list(self._running), deadline.left_s()).not_done

    def _on_end(self, job: Future[Any]) -> None:
        self._running.discard(job)
        self._ended.set()


class SealerThreads:
    """What runs beside the loop, by what it waits for.

    Args:
        threads: of the first six attributes, in their order.

    Attributes:
        workers: for flushes.
        claimers: for claims, and whatever else reads logs for long.
        lookers: for looks at logs, and claims whose last attempt had no answer: no other claim
            waits behind a leader that is silent.
        askers: for answers of the broker.
        writers: for files.
        beside: for retention, late scores, and searches in damaged logs. One thread: what it reads
            is shared, and nobody waits for it.
        ended: set whenever a job ends that a partition may wait for, until the loop clears it.
        abandoned: says in words that a job in ``beside`` hangs that was abandoned; else empty.
    """

    def __init__(self, *threads: Executor) -> None:
        self.ended, other = threading.Event(), threading.Event()
        ended = [self.ended] * 3 + [other] * 3
        pools = map(Pool, threads, ended)
        self.workers, self.claimers, self.lookers, self.askers, self.writers, self.beside = pools
        self.abandoned: Callable[[], str] = str

    def abandon(self, turn: Future[Any], hanging: Callable[[], str]) -> None:
        """A job in ``beside`` is abandoned; ``hanging`` tells of it until its turn has ended, and
        keeps all that its partition had."""
        self.abandoned = hanging
        turn.add_done_callback(self._forget)

    def _forget(self, _: Future[Any]) -> None:
        self.abandoned = str

    @classmethod
    def of(cls, workers: Executor | None, requests_at_once: int = 1) -> Self:
        """Threads; where the caller gives ``workers``, everything else runs in its own thread.

        Args:
            requests_at_once: of the store.
        """
        if workers is not None:
            return cls(workers, workers, workers, *(InlineExecutor() for _ in range(3)))
        workers_max = WORKERS if requests_at_once == 1 else FAR_WORKERS
        return cls(
            ThreadPoolExecutor(workers_max, "rollstream-flush"),
            ThreadPoolExecutor(CLAIMERS, "rollstream-claim"),
            ThreadPoolExecutor(LOOKERS, "rollstream-look"),
            ThreadPoolExecutor(ASKERS, "rollstream-ask"),
            ThreadPoolExecutor(max(WRITERS, requests_at_once), "rollstream-write"),
            ThreadPoolExecutor(1, "rollstream-retention"),
        )
