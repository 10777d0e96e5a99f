"""What a client makes of Ray's answers, from a thread and from a coroutine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
from ray.exceptions import (
    ActorDiedError,
    GetTimeoutError,
    ObjectLostError,
    RayActorError,
    TaskCancelledError,
)

from harness.batches import batch_event
from rollstream.folds.batches.served import ServedBatch
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.config.sections import (
    EnvironmentConfig,
    KafkaConfig,
    RollstreamConfig,
)
from rollstream.runtime.config.store import StoreConfig
from rollstream.sampler.actor import actor_calls
from rollstream.sampler.actor.actor_calls import START_TIMEOUT_S, ActorCalls
from rollstream.sampler.actor.agreement import Agree
from rollstream.sampler.actor.pickled import Pickled, Stored, crossing
from rollstream.sampler.actor.sampler_actor import Refused, Why
from rollstream.sampler.batch.assembled import AssembledBatch
from rollstream.sampler.batch.decided import Decided
from rollstream.sampler.decide.batches.next_batch import NextBatch
from rollstream.sampler.decide.command import Command, Reply
from rollstream.sampler.decide.queries.looks import AskStats
from rollstream.sampler.errors import SamplerUnavailable, UnknownStep
from rollstream.streams.errors import Fenced

NEVER = "never"  # How a call ends that does not end.
WAIT_S = 30.0
SECRETIVE = RollstreamConfig(
    kafka=KafkaConfig(bootstrap="kafka:9092", client={"sasl.password": "hunter2"}),
    store=StoreConfig(root="file:///data"),
    environments={"math": EnvironmentConfig()},
)
ANSWER: Reply[Any] = Reply(3, "an answer")
Execute = Callable[[ActorCalls], Reply[Any]]


class Died(ActorDiedError):
    """Ray makes its own of a context that only it has."""

    def __init__(self, told: str) -> None:
        super().__init__()
        self.told = told

    def __str__(self) -> str:
        return self.told


class Answer:
    """A call that ended so; ``during`` runs when somebody waits for it."""

    def __init__(self, outcome: Any, during: Callable[[], None]) -> None:
        self._outcome, self._during = outcome, during

    def get(self) -> Any:
        self._during()
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    def future(self) -> Future[Any]:
        future: Future[Any] = Future()
        if self._outcome is NEVER:
            return future
        try:
            future.set_result(self.get())
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the outcome.
            future.set_exception(error)
        return future


class World:
    """Ray, and an actor whose calls end in these ways, the last one for ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *outcomes: Any) -> None:
        self.clock = ManualClock()
        self.sent: list[Answer] = []
        self.cancelled: list[Answer] = []
        self.left = 0
        self.why = Why()
        self.during: Callable[[], None] = lambda: None
        self.on_send: Callable[[], None] = lambda: None
        self.outcomes = list(outcomes)
        monkeypatch.setattr(ray, "get", self._get)
        monkeypatch.setattr(ray, "cancel", self.cancelled.append)
        actor = SimpleNamespace(
            execute=SimpleNamespace(remote=self._execute),
            leave=SimpleNamespace(remote=self._leave),
            why_waiting=SimpleNamespace(remote=lambda _: Answer(self.why, lambda: None)),
        )
        self.calls = ActorCalls("trainer-a", actor, self.clock)

    def _execute(self, command: Command[Any], wait_s: float) -> Answer:
        outcomes = self.outcomes
        outcome = outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]
        if not isinstance(outcome, BaseException) and outcome != NEVER:
            outcome = crossing(outcome)
        self.sent.append(Answer(outcome, self.during))
        self.on_send()
        return self.sent[-1]

    def _leave(self) -> None:
        self.left += 1

    def _get(self, ref: Answer, timeout: float) -> Any:
        try:
            return ref.get()
        except GetTimeoutError:
            self.clock.advance(timeout)
            raise


def in_thread(calls: ActorCalls) -> Reply[Any]:
    return calls.execute(AskStats(), 1.0)


def in_coroutine(calls: ActorCalls) -> Reply[Any]:
    return asyncio.run(calls.execute_async(AskStats(), 1.0))


@pytest.fixture(params=[in_thread, in_coroutine])
def execute(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Execute:
    monkeypatch.setattr(actor_calls, "REPEAT_AFTER_S", 0.001)
    found: Execute = request.param
    return found


def test_a_call_is_repeated_where_the_actor_is_started_anew(
    execute: Execute, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(monkeypatch, RayActorError(), RayActorError(), ANSWER)
    assert execute(world.calls) == ANSWER
    assert (len(world.sent), world.cancelled) == (3, [])


def test_what_was_pickled_once_for_many_is_opened(
    execute: Execute, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(monkeypatch, Reply(3, Pickled.of("an answer")))
    assert execute(world.calls) == ANSWER


@pytest.mark.parametrize(
    ("outcome", "kind", "told"),
    [
        (Died("INTENDED_USER_EXIT: it left"), Fenced, "taken over by another owner"),
        (Died("the node is gone"), SamplerUnavailable, "will not be started again: the node"),
        (TaskCancelledError(), SamplerUnavailable, "somebody else cancelled this call"),
        (Refused(UnknownStep("no step 7"), False), UnknownStep, "no step 7"),
        (OSError("a defect"), OSError, "a defect"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_call_that_repeating_cannot_mend_is_sent_once(
    outcome: Any,
    kind: type[Exception],
    told: str,
    execute: Execute,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, outcome)
    with pytest.raises(kind, match=told):
        execute(world.calls)
    assert (len(world.sent), world.left) == (1, 0)


@pytest.mark.parametrize("sampler_fenced", [True, False])
def test_an_actor_leaves_when_its_sampler_is_fenced_and_not_when_a_trainer_is(
    sampler_fenced: bool, execute: Execute, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(monkeypatch, Refused(Fenced("a successor"), sampler_fenced))
    with pytest.raises(Fenced, match="a successor"):
        execute(world.calls)
    assert world.left == sampler_fenced


def test_a_call_that_nobody_waits_for_any_more_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        in_thread(world.calls)
    assert world.cancelled == world.sent
    assert len(world.sent) == 1


@pytest.mark.parametrize("when", ["on_send", "during"])
def test_closing_ends_the_calls_that_are_under_way_and_takes_no_more(
    when: str, execute: Execute, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(monkeypatch, TaskCancelledError())
    setattr(world, when, world.calls.close)
    for _ in range(2):
        with pytest.raises(SamplerUnavailable, match="'trainer-a' is closed; attach again"):
            execute(world.calls)
    assert world.cancelled == world.sent
    assert len(world.sent) == 1, "the second was not sent"


def test_an_actor_that_does_not_come_back_is_an_error_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, RayActorError())
    with pytest.raises(SamplerUnavailable, match="did not come back within 121 s"):
        in_thread(world.calls)
    assert world.clock.monotonic_s() == pytest.approx(START_TIMEOUT_S + 1, abs=1)


def test_an_actor_that_does_not_answer_is_an_error_in_time_and_says_why_it_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    world = World(monkeypatch, GetTimeoutError())
    world.why = Why(
        outage="Kafka at nowhere cannot be reached", missing="groups: step 9 needs 1 groups"
    )
    with pytest.raises(SamplerUnavailable, match="did not answer within 121 s"):
        in_thread(world.calls)
    assert world.clock.monotonic_s() == pytest.approx(START_TIMEOUT_S + 1, abs=1)
    assert "sampler 'trainer-a': Kafka at nowhere cannot be reached" in caplog.messages
    assert "waited 32 s so far for groups: step 9 needs 1 groups" in caplog.messages
    assert world.cancelled == world.sent


def test_who_waits_for_the_logs_to_be_folded_is_told_how_far_they_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    world = World(monkeypatch, GetTimeoutError())
    world.why = Why(folding="1,200 of 5,000 offsets (math[0] up to 200 of 4,000)")
    told = r"folded no more of its logs for 120 s; so far .* 1,200 of 5,000 .*attach again"
    with pytest.raises(SamplerUnavailable, match=told):
        world.calls.execute(Agree(config=SECRETIVE), 0.0)
    lines = [one for one in caplog.messages if "to fold its logs: 1,200 of 5,000" in one]
    assert [one.split(" so far")[0] for one in lines] == [
        "waited 32 s",
        "waited 62 s",
        "waited 92 s",
    ]


def test_a_fold_that_goes_on_takes_as_long_as_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, GetTimeoutError())

    def folded() -> Why:
        done = min(900, int(world.clock.monotonic_s()))
        return Why(folding=f"{done} of 1,000 offsets")

    monkeypatch.setattr(World, "why", property(lambda _: folded(), lambda *_: None), raising=False)
    with pytest.raises(SamplerUnavailable, match="for 120 s; so far it has folded 900 of 1,000"):
        world.calls.execute(Agree(config=SECRETIVE), 0.0)
    assert 900 + START_TIMEOUT_S <= world.clock.monotonic_s() <= 960 + START_TIMEOUT_S


def test_an_actor_that_dies_each_time_that_it_folds_is_an_error_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, NEVER)
    looks = 0

    def get(ref: Answer, timeout: float) -> Any:
        nonlocal looks
        if ref not in world.sent:
            return ref.get()
        looks += 1
        assert looks < 1_000, "it is waited for without end"
        if looks % 4:
            world.clock.advance(timeout)
            raise GetTimeoutError
        raise RayActorError

    folded = property(lambda _: Why(folding=f"{looks} of 1,000 offsets"), lambda *_: None)
    monkeypatch.setattr(World, "why", folded, raising=False)
    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(SamplerUnavailable):
        world.calls.execute(Agree(config=SECRETIVE), 0.0)


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (Agree(config=SECRETIVE), "Agree"),
        (NextBatch(step=7, num_groups=1), "NextBatch of step 7"),
    ],
)
def test_a_wait_names_its_call_and_tells_no_secret_of_the_configuration(
    command: Command[Any],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    world = World(monkeypatch, GetTimeoutError())
    with pytest.raises(SamplerUnavailable):
        world.calls.execute(command, 1.0)
    assert f"for sampler 'trainer-a' to answer {named}; " in caplog.text
    assert "hunter2" not in caplog.text


def stored(outcome: Any) -> Reply[Any]:
    """The answer to a call whose rows are to be fetched, which ends so."""
    decided = Decided.of(ServedBatch.of(batch_event(0), 0))
    pickled = Pickled.of(AssembledBatch(np.zeros(2_000, np.uint8), {}, {}, decided, 0))
    return Reply(3, pickled._replace(buffers=[Stored(Answer(outcome, lambda: None))]))


def test_a_call_is_repeated_where_what_was_stored_for_its_answer_is_lost(
    execute: Execute, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(
        monkeypatch, stored(ObjectLostError("00", b"", "")), stored(np.ones(2_000, np.uint8))
    )
    assert execute(world.calls).value.buffer.sum() == 2_000
    assert (len(world.sent), world.cancelled) == (2, [])


def test_what_was_stored_for_an_answer_and_does_not_come_is_an_error_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(actor_calls, "START_TIMEOUT_S", 0.01)
    for execute, outcome in ((in_thread, GetTimeoutError()), (in_coroutine, NEVER)):
        world = World(monkeypatch, stored(outcome))
        with pytest.raises(SamplerUnavailable, match="did not answer within"):
            execute(world.calls)
        assert world.cancelled == world.sent


def test_an_awaited_call_that_is_cancelled_is_cancelled_in_the_actor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, NEVER)

    async def ask() -> None:
        call = asyncio.ensure_future(world.calls.execute_async(AskStats(), WAIT_S))
        async with asyncio.timeout(WAIT_S):
            while not world.sent:
                await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()

    asyncio.run(ask())
    assert world.cancelled == world.sent
    assert len(world.sent) == 1
