"""Calls of a store that are waited for up to a deadline."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rollstream.runtime.clock import ManualClock
from rollstream.runtime.deadline import Deadline
from rollstream.store.errors import StoreHangs
from rollstream.store.in_time import in_time

ROOT = "file:///the-tests-own"
SHORT_S, WAIT_S = 0.05, 30.0


@pytest.fixture
def answers() -> Iterator[threading.Event]:
    """Until it is set, the store hangs."""
    event = threading.Event()
    yield event
    event.set()
    assert asked(lambda: "", WAIT_S) == ""  # Nothing is left to other tests.


def asked(ask: Callable[[], str], timeout_s: float) -> str:
    return in_time(ask, ROOT, Deadline(timeout_s))


def hanging(answers: threading.Event, begun: threading.Semaphore) -> Callable[[], str]:
    def ask() -> str:
        begun.release()
        assert answers.wait(WAIT_S)
        return "late"

    return ask


def test_calls_that_come_together_keep_one_thread_of_a_root_that_hangs(
    answers: threading.Event,
) -> None:
    begun, together = threading.Semaphore(0), threading.Barrier(2)

    class Together(ManualClock):
        """Both calls ask for the time when none has begun."""

        def now_us(self) -> int:
            together.wait(WAIT_S)
            return super().now_us()

    clock = Together()

    def ask(_: int) -> None:
        with pytest.raises(StoreHangs):
            in_time(hanging(answers, begun), ROOT, Deadline(SHORT_S, clock))

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(ask, range(2)))
    assert begun.acquire(timeout=WAIT_S)
    assert not begun.acquire(blocking=False), "a second thread hangs"


def test_the_answer_to_a_call_that_was_given_up_is_nobody_elses(answers: threading.Event) -> None:
    with pytest.raises(StoreHangs):
        asked(hanging(answers, threading.Semaphore(0)), SHORT_S)
    with pytest.raises(StoreHangs):
        asked(lambda: "not asked", SHORT_S)
    answers.set()
    assert asked(lambda: "new", WAIT_S) == "new"


def test_a_root_is_asked_again_after_no_thread_could_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: Any) -> None:
        raise RuntimeError("can't start new thread")

    def ask_twice() -> str:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError):
                asked(lambda: "", WAIT_S)
        return asked(lambda: "0", WAIT_S)

    assert exit_code_in_child(ask_twice) == 0  # It has none of the threads that this one keeps.


def exit_code_in_child(find: Callable[[], str]) -> int:
    child = os.fork()
    if not child:
        code = 1
        try:
            code = int(find())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_many_calls_leave_few_threads_and_those_within_a_call_run_in_its_own() -> None:
    def ask(number: int) -> int:
        def within() -> int:
            return in_time(threading.get_ident, f"{ROOT}-{number}", Deadline(WAIT_S))

        outer, inner = in_time(
            lambda: (threading.get_ident(), within()), f"{ROOT}-{number}", Deadline(WAIT_S)
        )
        assert inner == outer != threading.get_ident()
        return outer

    before = threading.active_count()
    assert len({ask(number) for number in range(50)}) <= 2
    assert threading.active_count() <= before + 2


def test_a_forked_process_waits_for_no_call_of_its_parent(answers: threading.Event) -> None:
    with pytest.raises(StoreHangs):
        asked(hanging(answers, threading.Semaphore(0)), SHORT_S)
    assert exit_code_in_child(lambda: asked(lambda: "0", 5.0)) == 0
