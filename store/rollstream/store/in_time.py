"""Calls of a store that are waited for up to a deadline: nothing ends a call of a dead mount."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from rollstream.runtime.clock import time_of_day
from rollstream.runtime.deadline import Deadline
from rollstream.store.errors import StoreHangs

LOG_AFTER_S = 5.0  # How often a wait may log.
T = TypeVar("T")
_Call = tuple[Future[Any], str]  # With the time when it began.
_unended: dict[str, _Call] = {}  # By root. The thread of a call alone takes it out.
os.register_at_fork(after_in_child=_unended.clear)  # Their threads are the parent's.


def in_time(ask: Callable[[], T], root: str, deadline: Deadline) -> T:
    """Returns what ``ask`` returns, or raises what it raises. It runs in a thread of its own, which
    is left behind if it hangs. No second call of a root begins while its first one hangs.

    Args:
        ask: calls the store.
        root: of the store.
        deadline: real time is waited, whatever its clock does.

    Raises:
        StoreHangs: no answer by the deadline.
    """
    answer: Future[T] = Future()
    call = answer, time_of_day(deadline.clock.now_us())
    while (hanging := _unended.setdefault(root, call)) is not call:
        _wait(root, hanging, deadline)
    name = "rollstream-store"
    try:
        threading.Thread(target=_run, args=(ask, root, answer), name=name, daemon=True).start()
    except BaseException:  # No thread is left to be had.
        del _unended[root]
        raise
    _wait(root, call, deadline)
    return answer.result()


def _run(ask: Callable[[], T], root: str, answer: Future[T]) -> None:
    try:
        found = ask()
    except BaseException as error:  # noqa: BLE001 - it is raised where the answer is waited for.
        del _unended[root]
        answer.set_exception(error)
    else:
        del _unended[root]
        answer.set_result(found)


def _wait(root: str, call: _Call, deadline: Deadline) -> None:
    """Returns once the call of the root has ended."""
    (answer, since), left_s = call, deadline.left_s()
    while wait([answer], min(left_s, LOG_AFTER_S)).not_done:
        left_s -= LOG_AFTER_S
        deadline.log_waiting(lambda: f"the store at {root} to answer")
        if left_s <= 0:
            raise StoreHangs(
                f"{root} has not answered since {since}: does the store hang (an NFS mount, a "
                "dying disk)? Mend the mount or the disk, then try again"
            )
