"""``AsyncSamplerClient``: the same with ``await``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from rollstream.runtime.clock import Clock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.sampler.deciding.commands import AckStatus, Later, Progress
from rollstream.sampler.serving.client import SamplerClient
from rollstream.sampler.serving.owner import SamplerStats
from rollstream.sampler.shaping.batch import Batch
from rollstream.schemas.order import Policy
from rollstream.store.blobs import Blobs
from rollstream.streams.broker import Broker
from rollstream.streams.folds.sampler.eligible import Accept

CALLS_MAX = 4  # At once; further ones wait for a thread.
P = ParamSpec("P")
T = TypeVar("T")


class AsyncSamplerClient:
    """A ``SamplerClient`` whose calls are awaited; see there for what they guarantee and raise.

    A call that is cancelled goes on behind the scenes: every call may be repeated.
    """

    @classmethod
    async def attach(
        cls,
        name: str,
        *,
        config: RollstreamConfig | Path | str,
        broker: Broker | None = None,
        store: Blobs | None = None,
        clock: Clock | None = None,
        address: str | None = None,
    ) -> Self:
        """See ``SamplerClient.attach``."""
        attach = partial(
            SamplerClient.attach,
            name,
            config=config,
            broker=broker,
            store=store,
            clock=clock,
            address=address,
        )
        return cls(await asyncio.to_thread(attach))

    def __init__(self, client: SamplerClient) -> None:
        self._client = client
        self._threads = ThreadPoolExecutor(CALLS_MAX, thread_name_prefix="rollstream-sampler")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def resume(self, checkpointed_step: int | None, *, later: Later = "replay") -> int:
        """See ``SamplerApi.resume``."""
        return await self._in_thread(self._client.resume, checkpointed_step, later=later)

    async def next_batch(
        self,
        step: int,
        num_groups: int,
        *,
        timeout_s: float | None = None,
        dp_rank: int = 0,
        dp_size: int = 1,
        accept: Accept | None = None,
        mix: Mapping[str, float] | None = None,
    ) -> Batch:
        """See ``SamplerApi.next_batch``."""
        return await self._in_thread(
            self._client.next_batch,
            step,
            num_groups,
            timeout_s=timeout_s,
            dp_rank=dp_rank,
            dp_size=dp_size,
            accept=accept,
            mix=mix,
        )

    async def replace(
        self, batch: Batch, groups: Sequence[int], reason: str, *, timeout_s: float | None = None
    ) -> Batch:
        """See ``SamplerApi.replace``."""
        return await self._in_thread(
            self._client.replace, batch, groups, reason, timeout_s=timeout_s
        )

    async def ack(self, batch: Batch, status: AckStatus = "trained") -> None:
        """See ``SamplerApi.ack``."""
        await self._in_thread(self._client.ack, batch, status)

    async def checkpointed(self, step: int) -> None:
        """See ``SamplerApi.checkpointed``."""
        await self._in_thread(self._client.checkpointed, step)

    async def publish_policy(self, step: int, *, policy_version: str) -> Policy:
        """See ``SamplerApi.publish_policy``."""
        return await self._in_thread(
            self._client.publish_policy, step, policy_version=policy_version
        )

    async def progress(self) -> Progress:
        """See ``SamplerApi.progress``."""
        return await self._in_thread(self._client.progress)

    async def stats(self) -> SamplerStats:
        """See ``SamplerApi.stats``."""
        return await self._in_thread(self._client.stats)

    async def close(self) -> None:
        """See ``SamplerClient.close``."""
        self._client.close()
        self._threads.shutdown(wait=False)

    async def _in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(call, *args, **kwargs))
