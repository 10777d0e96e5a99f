"""A sampler whose commands are executed in the process that asks."""

from __future__ import annotations

from pathlib import Path

from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.config.load import configured
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.entropy import Entropy, SystemEntropy
from rollstream.sampler.api.asking import Asks
from rollstream.sampler.configuration import sampler_config
from rollstream.sampler.decide.command import Command, R, Reply
from rollstream.sampler.engine.in_process import OwnerInProcess
from rollstream.sampler.forked import OpenedIn
from rollstream.sampler.rows.rank_reader import RankReader
from rollstream.store.blobs import Blobs
from rollstream.streams.broker import Broker


class AsksInProcess(Asks):
    """Has commands executed by an owner in this process, in the thread that asks. Making one claims
    nothing."""

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
        settings = sampler_config(name, loaded)
        reader = RankReader(store or loaded.store, settings.cache_bytes)
        super().__init__(name, clock, settings.timeout_s, reader)
        self._opened = OpenedIn(name)
        self._owner = OwnerInProcess(
            name,
            loaded,
            broker=broker,
            store=store,
            clock=clock,
            entropy=entropy or SystemEntropy(),
        )
        try:
            self._owner.check_deployment()
        except BaseException:
            self.close()
            raise

    def _execute(self, command: Command[R], wait_s: float) -> Reply[R]:
        self._opened.check()
        return self._owner.execute(command, wait_s)

    def close(self) -> None:
        """Releases what this object holds, and the log if it has it; the next owner goes on from
        there. Idempotent.
        """
        if self._opened.this_process:
            self._owner.close()
