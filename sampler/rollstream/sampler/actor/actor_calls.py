"""Calls to the actor of a sampler, from a thread that waits or from a coroutine."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import (
    ActorDiedError,
    GetTimeoutError,
    ObjectLostError,
    RayActorError,
    RayError,
    TaskCancelledError,
)

from rollstream.runtime.at_once import at_once
from rollstream.runtime.clock import Clock
from rollstream.runtime.deadline import LOG_WAITING_EVERY_S, Deadline
from rollstream.sampler.actor.pickled import Stored, opened, stored_in
from rollstream.sampler.actor.sampler_actor import Refused, Why
from rollstream.sampler.decide.command import Command, R, Reply
from rollstream.sampler.errors import SamplerUnavailable
from rollstream.sampler.forked import OpenedIn
from rollstream.streams.errors import Fenced

# A new worker process, and the logs read to their ends: while they are folded, only what passes
# since that was seen to go on.
START_TIMEOUT_S = 120.0
DEATHS_MAX = 3  # Of an actor that folds: where it dies each time, say for memory, it gets nowhere.
REPEAT_AFTER_S = 0.1  # Ray may say at once, again and again, that the actor cannot be reached.
FIRST_LOOK_S = 2.0  # A call that waits for so long asks what for,
WHY_S = 1.0  # and waits for that for so long.
# After these a call is repeated: the actor died, or with it what it had stored for the answer.
REPEATED = (RayActorError, TaskCancelledError, ObjectLostError)
_log = logging.getLogger("rollstream.wait")
NOT_KNOWN = Why()
_LEFT_FOR_GOOD = "INTENDED_USER_EXIT"  # How Ray words the death of an actor that left by itself.


class AnswerDeadline(Deadline):
    """For the actor's answer: ``START_TIMEOUT_S`` beside the time for groups."""

    def __init__(self, wait_s: float, clock: Clock) -> None:
        super().__init__(START_TIMEOUT_S + wait_s, clock)
        self._folded = ""
        self._deaths = 0

    def look(self, why: Why) -> None:
        """Begins again where the fold of the logs went on since the last look."""
        if why.folding and why.folding != self._folded:
            self._folded = why.folding
            if self._deaths < DEATHS_MAX:
                self.restart()

    def died(self) -> None:
        """The actor is started anew, and folds again what it did not save."""
        self._deaths += bool(self._folded)
        self._folded = ""


class _InThread:
    """Waits of a thread. No coroutine that waits so is ever suspended."""

    async def get(self, ref: Any, timeout_s: float) -> Any:
        """What Ray has for this reference; ``GetTimeoutError``: nothing yet."""
        return ray.get(ref, timeout=timeout_s)

    async def pause(self, deadline: Deadline) -> None:
        deadline.wait(REPEAT_AFTER_S)


class _InLoop:
    """Waits of a coroutine, which hold no thread."""

    async def get(self, ref: Any, timeout_s: float) -> Any:
        """As ``_InThread.get``."""
        found: asyncio.Future[Any] = asyncio.wrap_future(ref.future())
        try:
            if not (await asyncio.wait([found], timeout=timeout_s))[0]:
                raise GetTimeoutError
            return found.result()
        finally:
            found.cancel()

    async def pause(self, deadline: Deadline) -> None:
        await asyncio.sleep(deadline.slice_s(REPEAT_AFTER_S))


_Waits = _InThread | _InLoop


class ActorCalls:
    """Has commands executed by the actor, for one client.

    An actor whose process was killed is started anew by Ray, and the call is repeated. A call that
    nobody waits for any more, since it was cancelled or the client is closed, is cancelled in the
    actor, too. May be shared between threads.
    """

    def __init__(self, name: str, actor: Any, clock: Clock) -> None:
        self._name = name
        self._actor = actor
        self._clock = clock
        self._closed = False
        self._opened = OpenedIn(name)
        self._pending: set[Any] = set()  # As many as there are callers that wait.

    def execute(self, command: Command[R], wait_s: float) -> Reply[R]:
        """As ``OwnerInProcess.execute``; ``SamplerUnavailable`` where the actor does not answer."""
        return at_once(self._execute(command, wait_s, _InThread()))

    async def execute_async(self, command: Command[R], wait_s: float) -> Reply[R]:
        """The same; while it waits it holds no thread."""
        return await self._execute(command, wait_s, _InLoop())

    async def _execute(self, command: Command[R], wait_s: float, waits: _Waits) -> Reply[R]:
        wait, deadline = Deadline(wait_s, self._clock), AnswerDeadline(wait_s, self._clock)
        while True:
            ref = self._send(command, wait)
            try:
                answer = await self._get(ref, command, deadline, waits)
                fetched = [
                    await self._fetch(stored, deadline, waits) for stored in stored_in(answer)
                ]
            except REPEATED as error:
                self._check_repeatable(error, deadline)
            except BaseException:
                ray.cancel(ref)  # Nobody waits for it any more.
                raise
            else:
                return self._reply_of(opened(answer, fetched))
            finally:
                self._pending.discard(ref)
            await waits.pause(deadline)

    def close(self) -> None:
        """Ends the calls that are under way. Idempotent."""
        self._closed = True
        if not self._opened.this_process:
            return
        for ref in list(self._pending):
            ray.cancel(ref)

    def _send(self, command: Command[Any], wait: Deadline) -> Any:
        self._opened.check()
        if self._closed:
            raise self._closed_error()
        ref = self._actor.execute.remote(command, wait.left_s())
        self._pending.add(ref)
        self._cancel_if_closed(ref)  # Closed meanwhile, `close` may not have seen it.
        return ref

    def _cancel_if_closed(self, ref: Any) -> None:
        if self._closed:
            ray.cancel(ref)

    async def _get(
        self, ref: Any, command: Command[Any], deadline: AnswerDeadline, waits: _Waits
    ) -> object:
        look_s = FIRST_LOOK_S
        while True:
            try:
                return await waits.get(ref, deadline.slice_s(look_s))
            except GetTimeoutError:
                look_s, why = LOG_WAITING_EVERY_S, NOT_KNOWN
                with suppress(GetTimeoutError, RayError):
                    why = await waits.get(self._actor.why_waiting.remote(command), WHY_S)
                self._check_waiting(command, why, deadline)

    async def _fetch(self, stored: Stored, deadline: Deadline, waits: _Waits) -> Any:
        try:
            return await waits.get(stored.ref, deadline.left_s())
        except GetTimeoutError as error:
            raise self._no_answer(deadline) from error

    def _check_waiting(self, command: Command[Any], why: Why, deadline: AnswerDeadline) -> None:
        """Says what is waited for; raises once the time is up."""
        deadline.look(why)
        if deadline.passed():
            raise self._no_answer(deadline, why)
        if why.outage:
            _log.warning("sampler %r: %s", self._name, why.outage)
        deadline.log_waiting(
            lambda: (
                why.missing
                or (why.folding and f"sampler {self._name!r} to fold its logs: {why.folding}")
                or f"sampler {self._name!r} to answer {_named(command)}; `rollstream status` shows "
                "what is ready and what is stuck"
            )
        )

    def _reply_of(self, answer: Reply[R] | Refused) -> Reply[R]:
        if isinstance(answer, Refused):
            if answer.sampler_fenced:
                self._actor.leave.remote()
            raise answer.error
        return answer

    def _check_repeatable(self, error: Exception, deadline: AnswerDeadline) -> None:
        """Returns where the call is to be repeated: Ray starts the actor anew."""
        deadline.died()
        if self._closed:
            raise self._closed_error() from error
        if isinstance(error, ActorDiedError):
            raise self._actor_died(error) from error
        if isinstance(error, TaskCancelledError):
            raise SamplerUnavailable(
                f"somebody else cancelled this call of sampler {self._name!r}; repeat it"
            ) from error
        deadline.log_waiting(lambda: f"the actor of sampler {self._name!r} to start again")
        if deadline.passed():
            raise SamplerUnavailable(
                f"the actor of sampler {self._name!r} did not come back within "
                f"{deadline.timeout_s:.0f} s; look at its log under /tmp/ray, then attach again"
            ) from error

    def _actor_died(self, error: ActorDiedError) -> Fenced | SamplerUnavailable:
        if _LEFT_FOR_GOOD in str(error):
            return Fenced(
                f"sampler {self._name!r} was taken over by another owner and its actor has left; "
                "attach again to take it back"
            )
        return SamplerUnavailable(
            f"the actor of sampler {self._name!r} died and will not be started again: {error}"
        )

    def _no_answer(self, deadline: Deadline, why: Why = NOT_KNOWN) -> SamplerUnavailable:
        if why.folding:
            return SamplerUnavailable(
                f"the actor of sampler {self._name!r} folded no more of its logs for "
                f"{deadline.timeout_s:.0f} s; so far it has folded {why.folding}. It goes on from "
                "there: attach again"
            )
        return SamplerUnavailable(
            f"the actor of sampler {self._name!r} did not answer within "
            f"{deadline.timeout_s:.0f} s; look at its log under /tmp/ray, then attach again"
        )

    def _closed_error(self) -> SamplerUnavailable:
        return SamplerUnavailable(f"this client of {self._name!r} is closed; attach again")


def _named(command: Command[Any]) -> str:
    """Without what it asks for: that may be thousands of groups, or a configuration with passwords,
    and ends in logs."""
    step = getattr(command, "step", None)
    return f"{type(command).__name__}{'' if step is None else f' of step {step}'}"
