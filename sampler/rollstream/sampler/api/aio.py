"""``AsyncSamplerClient``: the same with ``await``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, cast

from rollstream.sampler.api.api import SamplerApi
from rollstream.sampler.api.client import SamplerClient
from rollstream.sampler.decide.command import Command, R, Reply
from rollstream.sampler.errors import InvalidRequest

P = ParamSpec("P")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
T = TypeVar("T")


class AwaitedClient(SamplerClient):
    """A client whose calls return awaitables of their results."""

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return cast(T, call)  # A coroutine of it.

    async def _executed(self, command: Command[R], wait_s: float) -> Reply[R]:
        return await self._calls.execute_async(command, wait_s)

    async def _aside(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(work, *args, **kwargs)


class Awaiting(Generic[S_co]):
    """An object whose calls return awaitables, whatever its methods declare."""

    def __init__(self, of: S_co) -> None:
        self._of = of


def awaited(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[Awaiting[S], P], Coroutine[Any, Any, T]]:
    """The method as a coroutine of what awaits it, with its signature and docstring."""

    @wraps(method)
    async def call(self: Awaiting[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await cast(Coroutine[Any, Any, T], method(self._of, *args, **kwargs))

    return call


def _attached(
    attach: Callable[P, SamplerClient],
) -> Callable[P, Coroutine[Any, Any, AsyncSamplerClient]]:
    @wraps(attach)
    async def call(*args: P.args, **kwargs: P.kwargs) -> AsyncSamplerClient:
        # Ray starts in a thread, once; no call after it takes one.
        return AsyncSamplerClient(await asyncio.to_thread(attach, *args, **kwargs))

    return call


class AsyncSamplerClient(Awaiting[SamplerClient]):
    """A ``SamplerClient`` whose methods are awaited; ``AsyncSamplerClient.attach`` makes it.

    Arguments and results are the same. ``attach`` is awaited, too: ``async with await
    AsyncSamplerClient.attach(…) as sampler``.

    Thousands of calls may be awaited at once, since no call holds a thread. If a call is cancelled
    while it waits for groups, the actor forgets it. A call that is decided already is carried out
    all the same, and may be repeated.
    """

    def __repr__(self) -> str:
        """One line, as of any sampler."""
        return repr(self._of).replace(type(self._of).__name__, type(self).__name__, 1)

    attach = staticmethod(_attached(AwaitedClient.attach))
    resume = awaited(SamplerClient.resume)
    next_batch = awaited(SamplerClient.next_batch)
    next_shaped_batch = awaited(SamplerClient.next_shaped_batch)
    recorded_batch = awaited(SamplerClient.recorded_batch)
    batch_summary = awaited(SamplerClient.batch_summary)
    replace = awaited(SamplerClient.replace)
    drop = awaited(SamplerClient.drop)
    purge = awaited(SamplerClient.purge)
    set_current_step = awaited(SamplerClient.set_current_step)
    sample_groups = awaited(SamplerClient.sample_groups)
    get_groups = awaited(SamplerClient.get_groups)
    evaluations = awaited(SamplerClient.evaluations)
    flush = awaited(SamplerClient.flush)
    ack = awaited(SamplerClient.ack)
    checkpointed = awaited(SamplerClient.checkpointed)
    finish = awaited(SamplerClient.finish)
    publish_policy = awaited(SamplerClient.publish_policy)
    progress = awaited(SamplerClient.progress)
    stats = awaited(SamplerClient.stats)

    async def close(self) -> None:
        """Detaches, and ends the calls that are awaited. The actor stays for others."""
        self._of.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._of._left(*error)


class AsksFirst(Protocol):
    """What is made of a sampler, which is asked for something first; None: it is not."""

    @property
    def _checked(self) -> Awaitable[None] | None: ...


A = TypeVar("A", bound=AsksFirst)


def awaiting(
    make: Callable[Concatenate[SamplerApi, P], A], awaited_as: Callable[[A], T]
) -> Callable[Concatenate[AsyncSamplerClient, P], Coroutine[Any, Any, T]]:
    """The constructor as a coroutine, with its signature and docstring."""

    @wraps(make, updated=())
    async def of(sampler: AsyncSamplerClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if not isinstance(sampler, AsyncSamplerClient):
            raise InvalidRequest(
                f"sampler is {sampler!r:.200}; give what await AsyncSamplerClient.attach(…) "
                f"returned, or make {make.__name__}"
            )
        made = make(sampler._of, *args, **kwargs)
        if made._checked is not None:
            await made._checked
        return awaited_as(made)

    return of
