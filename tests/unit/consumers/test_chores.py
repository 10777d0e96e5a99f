"""Jobs that nobody waits for, beside the loop of a sealer."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from rollstream.consumers.beside.backoff import FIRST_WAIT_S, TROUBLE_AFTER_S
from rollstream.consumers.beside.chores import IN_LOOP, Chore, Chores, Job
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.deadline import Deadline
from rollstream.store import StoreError
from rollstream.streams.errors import BrokerUnavailable

EVERY_S = 10.0
TIMEOUT_S = 5.0


class HeldExecutor(Executor):
    """Runs nothing before ``run``."""

    def __init__(self) -> None:
        self.held: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.held.append((future, lambda: fn(*args, **kwargs)))
        return future

    def begin(self) -> None:
        self.held[0][0].set_running_or_notify_cancel()

    def run(self) -> None:
        future, job = self.held.pop(0)
        try:
            future.set_result(job())
        except Exception as error:  # noqa: BLE001, as executors do
            future.set_exception(error)


def chores_of(clock: ManualClock, *chores: Chore, raises: bool = False) -> Chores:
    return Chores("math/0", clock, chores, raises=raises)


def counted(
    name: str, runs: list[str], *, runs_in: Executor = IN_LOOP, error: Exception | None = None
) -> Chore:
    def run() -> float:
        runs.append(name)
        if error is not None:
            raise error
        return EVERY_S

    return Chore(name, lambda deadline: run, runs_in, TIMEOUT_S)


def test_each_is_done_when_it_is_due_and_one_at_a_time() -> None:
    clock, runs, held = ManualClock(), list[str](), HeldExecutor()
    chores = chores_of(clock, *(counted(name, runs, runs_in=held) for name in ("one", "two")))
    for _ in range(3):
        chores.advance()
    assert len(held.held) == 1, "the second waits for the first"
    for _ in range(2):
        held.run()
        chores.advance()
        chores.advance()
    assert runs == ["one", "two"]
    chores.advance()
    assert not held.held, "none is due"
    clock.advance(EVERY_S)
    chores.advance()
    held.run()
    assert runs == ["one", "two", "one"]


def test_what_uses_the_log_is_begun_in_the_loop_and_its_result_goes_to_the_job() -> None:
    answer: Future[int] = Future()
    taken: list[int] = []

    def job() -> Job:
        taken.append((yield lambda: answer))
        return EVERY_S

    chores = chores_of(ManualClock(), Chore("log", lambda deadline: job(), IN_LOOP, TIMEOUT_S))
    assert chores.advance() is answer
    assert chores.advance() is None
    answer.set_result(7)
    assert chores.advance() is None
    assert taken == [7]


def test_a_future_that_is_not_there_by_the_deadline_is_given_up() -> None:
    clock, taken = ManualClock(), list[object]()

    def job() -> Job:
        taken.append((yield Future()))
        return EVERY_S

    chores = chores_of(clock, Chore("reports", lambda deadline: job(), IN_LOOP, TIMEOUT_S))
    assert chores.advance() is None
    clock.advance(TIMEOUT_S)
    chores.advance()
    assert taken == [None]


def test_a_job_that_fails_is_begun_again_after_a_while() -> None:
    clock, runs = ManualClock(), list[str]()
    chores = chores_of(clock, counted("one", runs, error=BrokerUnavailable("away")), raises=True)
    chores.advance()
    chores.advance()
    assert len(runs) == 1
    clock.advance(FIRST_WAIT_S)
    chores.advance()
    assert len(runs) == 2


def test_a_job_that_fails_without_end_leaves_the_others_their_turns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, runs = ManualClock(), list[str]()
    failing = counted("failing", runs, error=BrokerUnavailable("away"))
    chores = chores_of(clock, failing, counted("other", runs))
    for _ in range(5):
        for _ in range(3):
            chores.advance()
        clock.advance(EVERY_S)
    assert runs == ["failing", "other"] * 5
    assert [one.message for one in caplog.records if "trying again" in one.message] == [
        "math/0: failing: away; trying again"
    ], "the success of another chore is none of this one"


@pytest.mark.parametrize("raises", [True, False])
def test_an_error_of_a_job_is_raised_only_where_that_is_wanted(raises: bool) -> None:
    chores = chores_of(
        ManualClock(), counted("one", [], error=ZeroDivisionError("ours")), raises=raises
    )
    if raises:
        with pytest.raises(ZeroDivisionError):
            chores.advance()
    else:
        assert chores.advance() is None


def test_what_fails_before_it_is_a_job_is_begun_again_too() -> None:
    clock, begun = ManualClock(), list[Deadline]()

    def begin(deadline: Deadline) -> Job:
        begun.append(deadline)
        raise ZeroDivisionError("ours")

    chores = chores_of(clock, Chore("reports", begin, IN_LOOP, TIMEOUT_S))
    for _ in range(2):
        chores.advance()
        clock.advance(FIRST_WAIT_S)
    assert len(begun) == 2


def test_whoever_hurries_a_job_that_runs_has_it_done_again_at_once() -> None:
    clock, runs, held = ManualClock(), list[str](), HeldExecutor()
    chores = chores_of(clock, counted("one", runs, runs_in=held))
    chores.advance()
    chores.hurry()
    held.run()
    chores.advance()
    chores.advance()
    held.run()
    assert runs == ["one", "one"]


def test_a_job_that_is_late_is_told_until_it_ends() -> None:
    clock, held = ManualClock(), HeldExecutor()
    chores = chores_of(clock, counted("one", [], runs_in=held))
    chores.advance()
    clock.advance(TIMEOUT_S)
    chores.advance()
    assert chores.trouble() == "", "it waits for others"
    held.begin()
    chores.advance()
    clock.advance(TIMEOUT_S)
    chores.advance()
    assert "the job 'one' has not ended since 22:13:25 UTC" in chores.trouble()
    held.run()
    chores.advance()
    assert chores.trouble() == ""


def test_a_job_that_fails_for_long_is_told_until_it_succeeds() -> None:
    clock, errors = ManualClock(), [StoreError("the disk is full")]

    def run() -> float:
        if errors:
            raise errors[0]
        return EVERY_S

    chores = chores_of(clock, Chore("one", lambda deadline: run, IN_LOOP, TIMEOUT_S), raises=True)
    chores.advance()
    assert chores.trouble() == "", "it may pass"
    clock.advance(TROUBLE_AFTER_S)
    found = "the job 'one' fails since 22:13:20 UTC, and is tried again: the disk is full"
    assert chores.trouble() == found
    errors.clear()
    chores.advance()
    chores.advance()
    assert chores.trouble() == ""


def test_a_job_that_fails_since_the_broker_is_away_is_not_told() -> None:
    clock = ManualClock()
    chores = chores_of(clock, counted("one", [], error=BrokerUnavailable("away")))
    chores.advance()
    clock.advance(2 * TROUBLE_AFTER_S)
    assert chores.trouble() == ""


def test_a_failure_of_which_nothing_is_left_to_do_is_told_no_more() -> None:
    clock, jobs = ManualClock(), [lambda: 1 / 0]
    begin = lambda deadline: jobs[0] if jobs else None  # noqa: E731
    chores = chores_of(clock, Chore("one", begin, IN_LOOP, TIMEOUT_S))
    chores.advance()
    clock.advance(TROUBLE_AFTER_S)
    assert "ZeroDivisionError('division by zero')" in chores.trouble()
    jobs.clear()
    chores.advance()
    assert chores.trouble() == ""


def test_an_abandoned_job_finds_its_deadline_passed_and_is_not_gone_on_with() -> None:
    held, found = HeldExecutor(), list[Deadline]()

    def begin(deadline: Deadline) -> Job:
        found.append(deadline)
        return job(deadline)

    def job(deadline: Deadline) -> Job:
        yield lambda: pytest.fail("the log is no longer this owner's")
        return EVERY_S

    chores = chores_of(ManualClock(), Chore("files", begin, held, TIMEOUT_S))
    chores.advance()
    held.begin()
    chores.abandon()
    held.run()
    assert found[0].passed()
    assert chores.advance() is None


@pytest.mark.parametrize("runs", [True, False])
def test_the_last_job_is_waited_for_only_if_it_runs(runs: bool) -> None:
    held = HeldExecutor()
    chores = chores_of(ManualClock(), counted("one", [], runs_in=held))
    assert chores.finish(0.0)
    chores.advance()
    if runs:
        held.begin()
    assert chores.finish(0.0) is not runs
