"""Calls of a store that are waited for up to a deadline: nothing ends a call of a dead mount."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from rollstream.runtime.clock import time_of_day
from rollstream.runtime.deadline import Deadline
from rollstream.store.errors import StoreHangs

LOOK_S = 1.0  # How often a wait may log, and looks whether it is to end.
IDLE_MAX = 4  # Threads that are kept: starting one takes five times as long as handing it a call.
T = TypeVar("T")
# When it began, in microseconds, its name, and what changes while it goes on, if that is known.
_Call = tuple[Future[Any], int, str, Callable[[], object] | None]
_Jobs = SimpleQueue[Callable[[], bool]]  # Of one thread.
_unended: dict[str, _Call] = {}  # By root and ``beside``. The thread of a call alone takes it out.
_idle: list[_Jobs] = []
_thread = threading.local()  # ``calls`` is set in the threads of calls.


def in_time(
    ask: Callable[[], T],
    root: str,
    deadline: Deadline,
    name: str = "a look",
    stopping: threading.Event | None = None,
    *,
    beside: str = "",
    went_on: Callable[[], object] | None = None,
) -> T:
    """Returns what ``ask`` returns, or raises what it raises. It runs in another thread, which is
    left behind if it hangs. No second call of a root begins while its first one hangs.

    Args:
        ask: calls the store. Within it, ``in_time`` only calls.
        root: of the store.
        deadline: real time is waited, whatever its clock does.
        name: of the call, for errors.
        stopping: once it is set, the deadline is over.
        beside: calls that name something else wait for none of these calls.
        went_on: the whole time is left again once it returns another value, also to those that
            wait for the call's end.

    Raises:
        StoreHangs: no answer by the deadline.
    """
    if getattr(_thread, "calls", False):
        return ask()
    answer: Future[T] = Future()
    call = answer, deadline.clock.now_us(), name, went_on
    of = f"{root} {beside}"
    while (hanging := _unended.setdefault(of, call)) is not call:
        _wait(root, hanging, deadline, stopping)
    try:
        jobs = _idle_thread()
    except BaseException:  # No thread is left to be had.
        del _unended[of]
        raise
    jobs.put(lambda: _run(ask, of, answer, jobs))
    _wait(root, call, deadline, stopping)
    return answer.result()


def _idle_thread() -> _Jobs:
    """The jobs of a thread that has none."""
    try:
        return _idle.pop()
    except IndexError:
        jobs: _Jobs = SimpleQueue()
        name = "rollstream-store"
        threading.Thread(target=_serve, args=(jobs,), name=name, daemon=True).start()
        return jobs


def _serve(jobs: _Jobs) -> None:
    _thread.calls = True
    while jobs.get()():
        pass


def _run(ask: Callable[[], T], of: str, answer: Future[T], jobs: _Jobs) -> bool:
    """Makes the call; returns whether its thread is kept for others."""
    error: BaseException | None = None
    try:
        found = ask()
    except BaseException as raised:  # noqa: BLE001 - it is raised where the answer is waited for.
        error = raised
    del _unended[of]
    is_kept = len(_idle) < IDLE_MAX
    if is_kept:  # Before the answer, so that the next call of who has it finds the thread.
        _idle.append(jobs)
    if error is None:
        answer.set_result(found)
    else:
        answer.set_exception(error)
    return is_kept


def _wait(root: str, call: _Call, deadline: Deadline, stopping: threading.Event | None) -> None:
    """Returns once the call of the root has ended."""
    answer, begun_us, name, went_on = call
    left_s = deadline.left_s() if went_on is None else deadline.timeout_s
    seen = went_on and went_on()
    while True:
        with suppress(TimeoutError):
            answer.exception(min(left_s, LOOK_S))
            return
        left_s -= LOOK_S
        if (now := went_on and went_on()) != seen:
            left_s, seen = deadline.timeout_s, now
        deadline.log_waiting(lambda: f"the store at {root} to answer")
        if left_s <= 0 or (stopping is not None and stopping.is_set()):
            raise StoreHangs(
                f"{root} has not answered since {time_of_day(begun_us)} ({name}): does the store "
                "hang (an NFS mount, a dying disk)? Mend the mount or the disk, then try again"
            )


def _forget() -> None:
    """In a forked process: the threads are its parent's."""
    _unended.clear()
    _idle.clear()
    _thread.calls = False


os.register_at_fork(after_in_child=_forget)
