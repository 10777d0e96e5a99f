"""``AsyncSamplerClient``: the same with ``await``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

from rollstream.sampler.api.client import SamplerClient
from rollstream.sampler.batch.assembled import AssembledBatch
from rollstream.sampler.batch.batch import Batch
from rollstream.sampler.batch.share import Share
from rollstream.sampler.decide.batches.next_batch import BatchCommand, with_rows
from rollstream.sampler.decide.command import Command, R
from rollstream.sampler.decide.queries.looks import AskRecorded
from rollstream.schemas.errors import RollstreamError

P = ParamSpec("P")
T = TypeVar("T")


class _AwaitedClient(SamplerClient):
    """A client whose calls return awaitables of their results."""

    async def _ask(  # type: ignore[override]
        self, command: Command[R], timeout_s: float = 0.0
    ) -> R:
        reply = await self._calls.execute_async(self._stamped(command), timeout_s)
        return self._value_of(reply, command)

    async def _ask_for_batch(  # type: ignore[override]
        self, command: BatchCommand, timeout_s: float | None
    ) -> Batch:
        begun_s = self._clock.monotonic_s()
        wait_s = self._wait_s(timeout_s)
        answer = await self._ask(command, wait_s)
        read: AssembledBatch | None
        if isinstance(answer, Share):
            read = await asyncio.to_thread(self._rank_reader.read, answer)
        else:
            read = answer
        if read is None:
            read = with_rows(await self._ask(replace(command, payloads="sampler"), wait_s))
        waited_s = self._clock.monotonic_s() - begun_s
        return read.batch(waited_s=waited_s, read_group=self._read_group)

    async def _ask_if_recorded(  # type: ignore[override]
        self, command: AskRecorded
    ) -> Batch | None:
        read = await self._ask(command)
        if read is None:
            return None
        return with_rows(read).batch(waited_s=0.0, read_group=self._read_group)


def _awaited(
    method: Callable[Concatenate[SamplerClient, P], T],
) -> Callable[Concatenate[AsyncSamplerClient, P], Coroutine[Any, Any, T]]:
    """The method as a coroutine of ``AsyncSamplerClient``, with its signature and docstring."""

    @wraps(method)
    async def call(self: AsyncSamplerClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        awaitable = cast(Coroutine[Any, Any, T], method(self._client, *args, **kwargs))
        return await awaitable

    return call


def _attached(
    attach: Callable[P, SamplerClient],
) -> Callable[P, Coroutine[Any, Any, AsyncSamplerClient]]:
    @wraps(attach)
    async def call(*args: P.args, **kwargs: P.kwargs) -> AsyncSamplerClient:
        # Ray starts in a thread, once; no call after it takes one.
        return AsyncSamplerClient(await asyncio.to_thread(attach, *args, **kwargs))

    return call


class AsyncSamplerClient:
    """A ``SamplerClient`` whose methods are awaited; ``AsyncSamplerClient.attach`` makes it.

    Arguments and results are the same. ``attach`` is awaited, too: ``async with await
    AsyncSamplerClient.attach(…) as sampler``.

    Thousands of calls may be awaited at once, since no call holds a thread. If a call is cancelled
    while it waits for groups, the actor forgets it. A call that is decided already is carried out
    all the same, and may be repeated.
    """

    def __init__(self, client: SamplerClient) -> None:
        self._client = client

    def __repr__(self) -> str:
        """One line, as of any sampler."""
        return repr(self._client).replace(type(self._client).__name__, type(self).__name__, 1)

    attach = staticmethod(_attached(_AwaitedClient.attach))
    resume = _awaited(SamplerClient.resume)
    next_batch = _awaited(SamplerClient.next_batch)
    next_shaped_batch = _awaited(SamplerClient.next_shaped_batch)
    recorded_batch = _awaited(SamplerClient.recorded_batch)
    batch_summary = _awaited(SamplerClient.batch_summary)
    replace = _awaited(SamplerClient.replace)
    drop = _awaited(SamplerClient.drop)
    purge = _awaited(SamplerClient.purge)
    set_current_step = _awaited(SamplerClient.set_current_step)
    sample_groups = _awaited(SamplerClient.sample_groups)
    get_groups = _awaited(SamplerClient.get_groups)
    evaluations = _awaited(SamplerClient.evaluations)
    flush = _awaited(SamplerClient.flush)
    ack = _awaited(SamplerClient.ack)
    checkpointed = _awaited(SamplerClient.checkpointed)
    finish = _awaited(SamplerClient.finish)
    publish_policy = _awaited(SamplerClient.publish_policy)
    progress = _awaited(SamplerClient.progress)
    stats = _awaited(SamplerClient.stats)
    _end_run = _awaited(SamplerClient._end_run)

    async def close(self) -> None:
        """Detaches, and ends the calls that are awaited. The actor stays for others."""
        self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        try:
            if self._client._has_ended(*error):
                await self._end_run()
        except RollstreamError as failure:
            self._client._log_no_end(failure)
        finally:
            await self.close()
