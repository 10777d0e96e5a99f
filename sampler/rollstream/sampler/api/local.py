"""``Sampler``: the sampler in the trainer's own process, without Ray."""

from __future__ import annotations

from rollstream.sampler.api.api import SamplerApi
from rollstream.sampler.api.in_process import AsksInProcess
from rollstream.sampler.decide.command import Command, R, Reply
from rollstream.sampler.decide.trainer.commands import PublishPolicy, Resume
from rollstream.sampler.decide.trainer.pool import ResumePool

ANNOUNCED_S = 1.0


class Sampler(AsksInProcess, SamplerApi):
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

    def _execute(self, command: Command[R], wait_s: float) -> Reply[R]:
        self._opened.check()
        if command.claims:
            self._owner.tell_workers(follow=True)
        reply = super()._execute(command, wait_s)
        if isinstance(command, PublishPolicy | Resume | ResumePool):
            # So that a loop in one process, on a clock of its own, finds its own policy.
            self._owner.wait_announced(ANNOUNCED_S)
        return reply
