"""``SamplerClient``: the sampler as a Ray actor that trainers share."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import ray

from rollstream.runtime import logs
from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.config.load import configured
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler.actor.actor_calls import START_TIMEOUT_S, ActorCalls
from rollstream.sampler.actor.agreement import Agree
from rollstream.sampler.actor.attaching import connect, folder_of_user, one_at_a_time, record
from rollstream.sampler.actor.loopback_ray import RAY_NAMESPACE
from rollstream.sampler.actor.sampler_actor import CALLS_MAX, SamplerActor
from rollstream.sampler.api.api import SamplerApi
from rollstream.sampler.configuration import sampler_config
from rollstream.sampler.decide.command import Command, R, Reply
from rollstream.sampler.rows.rank_reader import RankReader
from rollstream.store.blobs import Blobs
from rollstream.streams.broker import Broker


class SamplerClient(SamplerApi):
    """A sampler that runs as a Ray actor for all ranks; ``SamplerClient.attach`` makes it.

    Arrays of a batch arrive as read-only NumPy views of Ray's object store, without a copy. If the
    actor's process dies, Ray starts it again and the call is repeated. Hundreds of ranks may wait
    in ``next_batch`` while others call: up to 8,192 calls wait, and ``stats().calls_waiting``
    counts them. Threads may share a client. A forked process raises ``ForkedSampler`` at each call;
    it attaches for itself, but only if its parent uses no Ray.
    """

    @classmethod
    def attach(
        cls,
        name: str,
        *,
        config: RollstreamConfig | Path | str,
        broker: Broker | None = None,
        store: Blobs | None = None,
        clock: Clock | None = None,
        address: str | None = None,
    ) -> Self:
        """Finds the sampler's actor, or starts it. Claims nothing.

        Clients on one machine or in one Ray cluster share the actor and fence nobody. The actor
        keeps the configuration that it was started with. This process looks for Ray in four places,
        in this order: the Ray that it is connected to; ``address``, or ``RAY_ADDRESS``; the Ray in
        which a process of this user last found the actor on this machine; the Ray that this user's
        processes share. The last one listens on 127.0.0.1 only. The first process starts it, and it
        ends with the last one. Processes of a user find one another by a folder
        ``rollstream-<uid>`` among the machine's temporary files.

        Args:
            name: which ``[samplers.<name>]``.
            config: the configuration, or the path of its file.
            broker: for the actor, instead of the configured one; it must be picklable.
            store: likewise.
            clock: for waits on this side.
            address: of a running Ray. If it asks for a token, this process needs the same token and
                ``RAY_AUTH_MODE=token``.

        Raises:
            ConfigError: the configuration is wrong.
            UnknownSampler: it has no sampler of this name.
            ConfigurationDiffers: the actor runs with another one; it names the key and both values.
            SamplerUnavailable: the actor did not start in time, or no Ray at the address lets this
                process in.
            ForkedSampler: this process was forked off one that is connected to Ray.
            TopicMismatch: topics are missing or not as configured.
        """
        loaded = configured(config)
        settings = sampler_config(name, loaded)
        clock = clock or SystemClock()
        actor: Any = ray.remote(SamplerActor).options(
            name=actor_name(name, loaded),
            namespace=RAY_NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=CALLS_MAX,
            num_cpus=0,
        )
        folder, deadline = folder_of_user(), Deadline(START_TIMEOUT_S, clock)
        with one_at_a_time(folder, deadline):
            connect(folder, actor_name(name, loaded), address, deadline)
            actor = actor.remote(name, loaded, broker, store, logs.configured())
            record(folder, actor_name(name, loaded))
        reader = RankReader(store or loaded.store, settings.cache_bytes)
        client = cls(name, actor, clock, settings.timeout_s, reader)
        client._execute(Agree(config=loaded), 0.0)
        return client

    def __init__(
        self, name: str, actor: Any, clock: Clock, timeout_s: float, rank_reader: RankReader
    ) -> None:
        super().__init__(name, clock, timeout_s, rank_reader)
        self._calls = ActorCalls(name, actor, clock)

    def _execute(self, command: Command[R], wait_s: float) -> Reply[R]:
        return self._calls.execute(command, wait_s)

    def close(self) -> None:
        """Detaches, and ends the calls that are under way. The actor stays for others."""
        self._calls.close()


def actor_name(name: str, config: RollstreamConfig) -> str:
    """Of a sampler's actor, in the Ray namespace ``rollstream``."""
    return f"{config.kafka.namespace}.{name}"
