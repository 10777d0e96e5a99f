"""``Sampler``: the sampler in the trainer's own process, without Ray."""

from __future__ import annotations

from pathlib import Path

from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.config.load import configured
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.entropy import Entropy, SystemEntropy
from rollstream.sampler.api.api import SamplerApi
from rollstream.sampler.configuration import sampler_config
from rollstream.sampler.decide.command import Command, R, Reply
from rollstream.sampler.decide.trainer.commands import PublishPolicy, Resume
from rollstream.sampler.decide.trainer.pool import ResumePool
from rollstream.sampler.engine.in_process import OwnerInProcess
from rollstream.sampler.forked import OpenedIn
from rollstream.sampler.rows.rank_reader import RankReader
from rollstream.store.blobs import Blobs
from rollstream.streams.broker import Broker

ANNOUNCED_S = 1.0


class Sampler(SamplerApi):
    """A sampler in the trainer's own process, without Ray; the methods are those of ``SamplerApi``.

    Making one claims nothing. The first call that decides takes the sampler's name over, and fences
    the process that had it. Threads may share it. A forked process raises ``ForkedSampler`` at each
    call; it opens one of its own.

    Args:
        name: which ``[samplers.<name>]``.
        config: the configuration, or the path of its file.
        broker: instead of the configured one; the caller closes it.
        store: likewise.
        clock: instead of the system's.
        entropy: likewise.

    Raises:
        ConfigError: the configuration is wrong.
        UnknownSampler: it has no sampler of this name.
        TopicMismatch: topics are missing or not as configured.
        BrokerUnavailable: the broker did not answer in time.
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
        if command.claims:
            self._owner.tell_workers(follow=True)
        reply = self._owner.execute(command, wait_s)
        if isinstance(command, PublishPolicy | Resume | ResumePool):
            # So that a loop in one process, on a clock of its own, finds its own policy.
            self._owner.wait_announced(ANNOUNCED_S)
        return reply

    def close(self) -> None:
        """Releases the log. The next owner goes on from here."""
        if self._opened.this_process:
            self._owner.close()
