"""``AsyncSamplerClient``: the same with ``await``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from rollstream.sampler.serving.client import SamplerClient

CALLS_MAX = 4  # At once; further ones wait for a thread.
P = ParamSpec("P")
T = TypeVar("T")


def _awaited(
    method: Callable[Concatenate[SamplerClient, P], T],
) -> Callable[Concatenate[AsyncSamplerClient, P], Coroutine[Any, Any, T]]:
    """The method as a coroutine of ``AsyncSamplerClient``, with its signature and docstring."""

    @wraps(method)
    async def call(self: AsyncSamplerClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        work = partial(method, self._client, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    return call


def _attached(
    attach: Callable[P, SamplerClient],
) -> Callable[P, Coroutine[Any, Any, AsyncSamplerClient]]:
    @wraps(attach)
    async def call(*args: P.args, **kwargs: P.kwargs) -> AsyncSamplerClient:
        return AsyncSamplerClient(await asyncio.to_thread(attach, *args, **kwargs))

    return call


class AsyncSamplerClient:
    """A ``SamplerClient`` whose methods are awaited; their arguments and results are the same.

    ``attach``, ``resume``, ``next_batch``, ``replace``, ``ack``, ``checkpointed``,
    ``publish_policy``, ``progress`` and ``stats`` are those of ``SamplerClient``; ``attach`` is
    awaited too: ``async with await AsyncSamplerClient.attach(…) as sampler``.

    A call that is cancelled is executed all the same: every call may be repeated.
    """

    def __init__(self, client: SamplerClient) -> None:
        self._client = client
        self._threads = ThreadPoolExecutor(CALLS_MAX, thread_name_prefix="rollstream-sampler")

    attach = staticmethod(_attached(SamplerClient.attach))
    resume = _awaited(SamplerClient.resume)
    next_batch = _awaited(SamplerClient.next_batch)
    replace = _awaited(SamplerClient.replace)
    ack = _awaited(SamplerClient.ack)
    checkpointed = _awaited(SamplerClient.checkpointed)
    publish_policy = _awaited(SamplerClient.publish_policy)
    progress = _awaited(SamplerClient.progress)
    stats = _awaited(SamplerClient.stats)

    async def close(self) -> None:
        """Detaches; the actor stays for others."""
        self._client.close()
        self._threads.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
