"""``Sampler``: the sampler in the trainer's own process, without Ray."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.config.load import configured
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.entropy import Entropy, SystemEntropy
from rollstream.sampler.deciding.commands import Command
from rollstream.sampler.serving.api import SamplerApi
from rollstream.sampler.serving.owner import Owner, Reply, sampler_section
from rollstream.sampler.shaping.scratch import Fresh
from rollstream.store.blobs import Blobs
from rollstream.store.open import open_store
from rollstream.streams.broker import Broker
from rollstream.streams.kafka import KafkaBroker


class Sampler(SamplerApi):
    """The same as ``SamplerClient``, executed here. Making one takes the sampler's name over.

    Whoever served under that name before is fenced. May be shared between threads.

    Args:
        name: which ``[samplers.<name>]``.
        config: the configuration, or where it lies.
        broker: instead of the configured one, and so ``store``; the caller closes them.
        clock: instead of the system's, and so ``entropy``.

    Raises:
        ConfigError: the configuration is wrong.
        UnknownSampler: it has no sampler of this name.
        TopicMismatch: topics are missing or not as configured.
        ClaimFailed, BrokerUnavailable: the broker did not answer in time.
    """

    def __init__(
        self,
        name: str,
        *,
        config: RollstreamConfig | Path | str,
        broker: Broker | None = None,
        store: Blobs | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        loaded = configured(config)
        clock = clock or SystemClock()
        super().__init__(clock, sampler_section(name, loaded).timeout_s)
        self._own_broker: Broker | None = None
        if broker is None:
            broker = self._own_broker = KafkaBroker(loaded.kafka.bootstrap, loaded.kafka.client)
        self._owner = Owner(
            name,
            loaded,
            broker=broker,
            store=open_store(loaded.store.root) if store is None else store,
            clock=clock,
            entropy=entropy or SystemEntropy(),
            owner=f"{socket.gethostname()}:{os.getpid()}",
            pid=os.getpid(),
            memory=Fresh(),
        )
        try:
            self._owner.start()
        except BaseException:
            self.close()
            raise

    def _execute(self, command: Command, wait_s: float) -> Reply:
        return self._owner.execute(command, wait_s)

    def close(self) -> None:
        """Lets go: nothing is written; the next owner goes on where this one stood."""
        self._owner.close()
        if self._own_broker is not None:
            self._own_broker.close()
            self._own_broker = None
