"""Waits for a policy, whichever producer asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from rollstream.producers.admission.log import AdmissionLog
from rollstream.producers.admission.policies import FollowedPolicy, Wanted
from rollstream.producers.errors import IF_NO_TOPIC, NoPolicy, RunOver
from rollstream.runtime.deadline import LOG_WAITING_EVERY_S, Deadline
from rollstream.streams.errors import BrokerError, BrokerUnavailable, UnknownTopic

Wait = Callable[[int, float], Coroutine[Any, Any, int]]
"""As ``AdmissionLog.wait``."""
Pause = Callable[[float], Coroutine[Any, Any, None]]
"""Waits so many seconds."""

_SHARED_S = 1.0  # The end of a process waits for a thread that waits, at most so long.
_AGAIN_S = 0.5  # After an error: the topic may be made, and the broker may come back.
_CHECK = (
    "; check that its trainer runs and calls publish_policy, under a sampler that has this "
    "environment"
)


async def newest_policy(
    wanted: Wanted, log: AdmissionLog, wait: Wait, pause: Pause, deadline: Deadline
) -> FollowedPolicy:
    """The policy that is wanted, as soon as it is known.

    Raises:
        NoPolicy: it is not known when the time is up. SeveralLineages.
        RunOver: the run is over: at once where a newer policy is wanted. A worker that has none yet
            may have been started before the trainer that extends the run, so it waits for that one
            until the time is up.
    """
    seen, failure, what = 0, None, str(wanted)
    while True:
        try:
            seen, failure = await wait(seen, deadline.slice_s(LOG_WAITING_EVERY_S)), None
        except BrokerError as error:
            failure = error
        try:
            found, what = wanted.among(log.policies, log.ended), str(wanted)
        except RunOver as over:
            if wanted.newer_than is not None or deadline.passed():
                raise
            found, what = None, f"a trainer: {over}"
        if found is not None:
            return found
        if deadline.passed():
            why = _CHECK if failure is None else f": {_named(failure)}"
            late = f"{wanted} was not known within {deadline.timeout_s:g} s{why}"
            raise NoPolicy(late) from failure
        if failure is not None:
            what = f"{wanted}: {_named(failure)}"
            await pause(deadline.slice_s(_AGAIN_S))
        deadline.log_waiting(partial(str, what))


@dataclass(eq=False)
class SharedWait:
    """``AdmissionLog.wait`` for the coroutines of one event loop: however many wait, one thread
    does."""

    _log: AdmissionLog
    _seen: int = 0  # It was not read so far.
    _failure: Exception | None = None
    _waiting: asyncio.Task[None] | None = None

    async def wait(self, seen: int, timeout_s: float) -> int:
        """As ``AdmissionLog.wait``."""
        if seen == self._seen:
            if self._waiting is None or self._waiting.done():
                self._waiting = asyncio.create_task(self._wait())
            await asyncio.wait([self._waiting], timeout=timeout_s)
            if self._failure is not None:
                raise self._failure
            if not self._seen:
                raise BrokerUnavailable(
                    f"what trainers announced was not read within {timeout_s:g} s"
                )
        return self._seen

    async def end(self) -> None:
        """Returns once the thread waits no more; the log was closed."""
        if self._waiting is not None:
            await self._waiting

    async def _wait(self) -> None:
        try:
            self._seen = await asyncio.to_thread(self._log.wait, self._seen, _SHARED_S)
            self._failure = None
        except Exception as error:  # noqa: BLE001, whatever it is, those that wait get it
            self._failure = error


def _named(failure: BrokerError) -> str:
    """The broker's answer, with what to do if a topic does not exist."""
    return f"{failure}; {IF_NO_TOPIC}" if isinstance(failure, UnknownTopic) else str(failure)
