"""``SamplerClient``: the sampler as a Ray actor that trainers share."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self

import ray
from ray._private import ray_constants
from ray.exceptions import AuthenticationError

from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.config.load import configured
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.sampler.deciding.command import Command, R, Reply
from rollstream.sampler.deciding.queries import AskStats
from rollstream.sampler.errors import SamplerUnavailable
from rollstream.sampler.serving.actor import CALLS_MAX, SamplerActor
from rollstream.sampler.serving.actor_calls import ActorCalls
from rollstream.sampler.serving.api import SamplerApi
from rollstream.sampler.serving.configuration import sampler_config
from rollstream.store.blobs import Blobs
from rollstream.streams.broker import Broker

RAY_NAMESPACE = "rollstream"
OBJECT_STORE_BYTES = 256 * 1024 * 1024  # Of a Ray that we start: batches on their way, no more.
LOOPBACK = "127.0.0.1"
_CLUSTERS_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


class SamplerClient(SamplerApi):
    """A trainer's side of a sampler that runs as a Ray actor, named and detached.

    Arrays of a batch arrive as read-only NumPy views of Ray's object store; nothing is copied here.
    An actor whose process was killed is started anew by Ray and the call is repeated: every call
    may be. May be shared between threads.
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
        """Finds the sampler's actor, or starts it.

        Clients of one actor share it and fence nobody. An actor that is started takes the sampler's
        name over, as ``Sampler`` does: where another owner (a ``Sampler``, or an actor in another
        Ray cluster) has it, that owner is fenced. Whoever trained before is fenced by ``resume``.

        Args:
            name: which ``[samplers.<name>]``.
            config: the configuration, or the path of its file.
            broker: for the actor, instead of the configured one, and so ``store``; they travel
                there, so they must be picklable.
            clock: for waits on this side.
            address: of a running Ray, where this process is not connected to one; None: one is
                started on this machine, listening on 127.0.0.1 only. To join a Ray that asks for a
                token, this process needs the same token and ``RAY_AUTH_MODE=token``.

        Raises:
            ConfigError: the configuration is wrong.
            UnknownSampler: it has no sampler of this name.
            SamplerUnavailable: the actor did not start in time, or there is no Ray at the address
                that lets this process in.
            TopicMismatch: topics are missing or not as configured.
        """
        loaded = configured(config)
        timeout_s = sampler_config(name, loaded).timeout_s
        _connect(address)
        actor: Any = (
            ray.remote(SamplerActor)
            .options(
                name=name,
                namespace=RAY_NAMESPACE,
                lifetime="detached",
                get_if_exists=True,
                max_restarts=-1,
                max_task_retries=0,
                max_concurrency=CALLS_MAX,
                num_cpus=0,
            )
            .remote(name, loaded, broker, store)
        )
        client = cls(name, actor, clock or SystemClock(), timeout_s)
        client._execute(AskStats(), 0.0)  # Its reply shows that the sampler runs.
        return client

    def __init__(self, name: str, actor: Any, clock: Clock, timeout_s: float) -> None:
        super().__init__(clock, timeout_s)
        self._calls = ActorCalls(name, actor, clock)

    def _execute(self, command: Command[R], wait_s: float) -> Reply[R]:
        return self._calls.execute(command, wait_s)

    def close(self) -> None:
        """Detaches, and ends the calls that are under way; the actor stays for others."""
        self._calls.close()


def _connect(address: str | None) -> None:
    if ray.is_initialized():
        return
    if address is not None:
        _join(address)
        return
    with _loopback_only():
        ray.init(
            address="local",
            namespace=RAY_NAMESPACE,
            num_cpus=1,
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            # Ray's workers would give way to every other process, and trainers wait for this one.
            _system_config={"worker_niceness": 0},
            _node_ip_address=LOOPBACK,
        )


def _join(address: str) -> None:
    with _loopback_only() if address.startswith(LOOPBACK) else nullcontext():
        try:
            ray.init(address=address, namespace=RAY_NAMESPACE, log_to_driver=False)
        except (ConnectionError, AuthenticationError) as error:
            raise SamplerUnavailable(
                f"no connection to Ray at {address}: check that it runs and can be reached there; "
                "where it asks for a token, as Ray does by default, give this process the "
                "cluster's (the same ~/.ray/auth_token, or RAY_AUTH_TOKEN) and set "
                "RAY_AUTH_MODE=token in its environment before it starts"
            ) from error


@contextmanager
def _loopback_only() -> Iterator[None]:
    """A Ray started within listens on 127.0.0.1 only; one that does can be joined.

    Ray replaces a loopback address by the machine's own, and listens on every interface, unless it
    takes the machine for one that cannot form clusters. It reads that from this variable: here at
    import, in the processes that it starts later.
    """
    before = os.environ.get(_CLUSTERS_VARIABLE), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[_CLUSTERS_VARIABLE] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before[1]
        if before[0] is None:
            del os.environ[_CLUSTERS_VARIABLE]
        else:
            os.environ[_CLUSTERS_VARIABLE] = before[0]
