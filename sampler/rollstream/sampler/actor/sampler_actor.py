"""The Ray actor: an owner with one method, ``execute``."""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import ray

from rollstream.runtime import logs
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.entropy import SystemEntropy
from rollstream.sampler.actor.awaited_calls import AwaitedCalls
from rollstream.sampler.actor.loopback_ray import allow_get_beside_event_loop
from rollstream.sampler.actor.pickled import crossing
from rollstream.sampler.actor.stored import StoredBatches
from rollstream.sampler.decide.command import Command, Lane, R, Reply
from rollstream.sampler.engine.calls import AGAIN_S, WAITING_MAX, Call, attempted
from rollstream.sampler.engine.owner import Owner
from rollstream.sampler.errors import GroupsUnreadable, SamplerError
from rollstream.schemas.errors import RollstreamError
from rollstream.store.blobs import Blobs
from rollstream.store.warm_memory import keep_memory_warm
from rollstream.streams.broker import Broker
from rollstream.streams.errors import Fenced

CALLS_MAX = WAITING_MAX + 1_024  # At once: those that do not wait find room beside all that do.
FOLLOW_SLICE_S = 0.2  # How often the thread that reads the seal logs looks whether it should end.
FOLLOW_AGAIN_S = 0.5  # After an error: a broker that refuses at once must not keep a core busy.
_log = logging.getLogger("rollstream.sampler")


@dataclass(frozen=True, slots=True)
class Refused:
    """An error that crosses to the client as a value, so that its type survives.

    Attributes:
        sampler_fenced: the sampler itself, not only this trainer, has a successor.
    """

    error: RollstreamError
    sampler_fenced: bool


@dataclass(frozen=True, slots=True)
class Why:
    """Why a call was not answered yet.

    Attributes:
        outage: why no broker can be reached; empty: as far as is known, one can.
        folding: how far the logs are folded that the actor reads first; empty: it reads none.
        missing: the groups that it waits for, and where they stay; empty: it is not known to wait.
    """

    outage: str = ""
    folding: str = ""
    missing: str = ""


class SamplerActor:
    """One sampler, decided in one process.

    An asyncio actor: a call that waits is an awaitable and holds no thread. One thread decides, one
    in each ``Lane`` reads, and one reads the seal logs and ends the waits whose groups came. Two
    ask the broker for calls that append nothing.

    Started anew by Ray when its process was killed; it then folds the logs and goes on. Where
    another owner took over it answers ``Fenced``, and exits for good at ``leave``.
    """

    def __init__(
        self,
        name: str,
        config: RollstreamConfig,
        broker: Broker | None,
        store: Blobs | None,
        log_format: logs.LogFormat | None = None,
    ) -> None:
        if log_format is not None:
            logs.configure(log_format)
        allow_get_beside_event_loop()
        keep_memory_warm()
        lanes: dict[Lane, ThreadPoolExecutor] = {
            lane: ThreadPoolExecutor(1, thread_name_prefix=f"rollstream-read-{lane}")
            for lane in get_args(Lane)
        }
        self._reader = lanes["now"]
        stored = StoredBatches()
        self._owner = Owner(
            name,
            config,
            broker=broker,
            store=store,
            clock=SystemClock(),
            entropy=SystemEntropy(),
            reader=self._reader,
            keep=stored.keep,
        )
        self._started = False
        self._leaving = threading.Event()
        self._decider = ThreadPoolExecutor(1, thread_name_prefix="rollstream-decider")
        # Calls for the decider, which takes all of them at once.
        self._queued: deque[tuple[Call[Any], Callable[[], None]]] = deque()
        self._pass_is_due = False
        # One thread each, so that calls are decided in their order.
        self._asker = ThreadPoolExecutor(1, thread_name_prefix="rollstream-asker")
        self._to_the_ends = ThreadPoolExecutor(1, thread_name_prefix="rollstream-to-the-ends")
        self._calls = AwaitedCalls(self._give_up, lanes, stored.pickled)
        self._follower = threading.Thread(
            target=self._follow, name="rollstream-follower", daemon=True
        )

    async def execute(self, command: Command[Any], wait_s: float) -> object:
        """As ``OwnerInProcess.execute``; ``opened`` gives the answer: a ``Reply``, in which what
        was read from the store is pickled, or an error that Rollstream raised on purpose."""
        wait, deadline = Deadline(wait_s), self._owner.deadline(wait_s)

        async def attempt(command: Command[Any]) -> Reply[Any]:
            call = self._owner.begin(command)
            return await self._calls.reply(call, wait.left_s(), partial(self._submit, call))

        async def pause(_: Exception) -> None:
            await asyncio.sleep(AGAIN_S)

        answer: object
        try:
            answer = await attempted(command, attempt, self._repair, pause, deadline)
        except RollstreamError as error:
            answer = Refused(_portable(error), isinstance(error, Fenced) and self._owner.fenced)
        return crossing(answer)

    async def _repair(self, command: Command[R], error: GroupsUnreadable) -> Command[R]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reader, self._owner.repair, command, error)

    async def why_waiting(self, command: Command[Any]) -> Why:
        """Why a call with this command was not answered yet, as far as is known."""
        if outage := self._owner.outage():
            return Why(outage=outage)  # Who decides may be waiting for the broker.
        if folding := self._owner.folding():
            return Why(folding=folding)
        loop = asyncio.get_running_loop()
        missing = await loop.run_in_executor(self._decider, self._owner.missing, command)
        return Why(missing=missing)

    async def leave(self) -> None:
        """Exits for good, so that Ray does not start it anew."""
        self._leaving.set()
        await asyncio.get_running_loop().run_in_executor(self._decider, self._owner.close)
        self._calls.hand_over()
        ray.actor.exit_actor()  # type: ignore[no-untyped-call]

    def _submit(self, call: Call[Any], decided: Callable[[], None]) -> None:
        self._queued.append((call, decided))
        if not self._pass_is_due:
            self._pass_is_due = True
            try:
                self._decider.submit(self._decide_queued)
            except BaseException:  # No thread is left to be had: the next call tries again.
                self._pass_is_due = False
                raise

    def _give_up(self, call: Call[Any]) -> None:
        self._decider.submit(self._end_waiting, call)

    def _end_waiting(self, call: Call[Any]) -> None:
        call.attempt(self._owner.give_up)
        self._calls.hand_over()

    def _decide_queued(self) -> None:
        self._pass_is_due = False  # Before the look: a call that comes after it has another pass.
        calls = dict([self._queued.popleft() for _ in range(len(self._queued))])
        try:
            self._decide_all(calls)
        except BaseException as error:  # noqa: BLE001 - whatever it is, nobody waits in vain
            for call in calls:
                call.fail(error)
        calls.clear()  # The frames of one's error would keep what all others got, in a circle.
        self._calls.hand_over()

    def _decide_all(self, calls: dict[Call[Any], Callable[[], None]]) -> None:
        """Those that the broker is asked for first are taken out."""
        if not self._started:
            self._follower.start()
            self._started = True
            self._owner.tell_workers(follow=False)
        for call in self._owner.decide_all(calls, self._calls.hand_over):
            asker = self._to_the_ends if call.command.to_the_ends else self._asker
            asker.submit(self._ask, call, calls[call])
            del calls[call]  # From now on it is the asker's.
        for call, decided in calls.items():
            if not call.ended:
                decided()

    def _ask(self, call: Call[Any], decided: Callable[[], None]) -> None:
        try:
            self._owner.asked.ask(call, reads=False)
        except BaseException as error:  # noqa: BLE001 - whatever it is, its caller gets it
            call.fail(error)
            self._calls.hand_over()
        else:
            self._submit(call, decided)

    def _follow(self) -> None:
        clock = SystemClock()
        while not self._leaving.is_set():
            try:
                self._owner.follow(FOLLOW_SLICE_S)
            except Exception as error:  # noqa: BLE001, whatever it is, nobody waits in vain
                # Those that wait get it, and so does the next command, which reads here itself.
                self._owner.fail_waiting(error)
                if not isinstance(error, RollstreamError):
                    _log.exception("the seal logs cannot be read")
                self._calls.hand_over()
                clock.wait(self._leaving, FOLLOW_AGAIN_S)
            self._calls.hand_over()


def _portable(error: RollstreamError) -> RollstreamError:
    """The error itself where it can be unpickled, else a ``SamplerError`` with its message."""
    try:
        pickle.loads(pickle.dumps(error))
    except TypeError:
        return SamplerError(f"{type(error).__name__}: {error}")
    return error
