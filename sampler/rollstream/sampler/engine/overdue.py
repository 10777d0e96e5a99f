"""Says of batches that nobody acks; they are given to nobody else."""

from __future__ import annotations

import logging

from rollstream.folds.state import SamplerState
from rollstream.runtime.clock import Clock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.sampler.decide.queries.looks import overdue_steps

LOOK_EVERY_S = 1.0
_log = logging.getLogger("rollstream.sampler")


class OverdueBatches:
    """Warns, once each time that it is served, of a batch that is neither acked nor released within
    ``ack_timeout_s``."""

    def __init__(self, config: RollstreamConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._look_at_s = 0.0
        self._told: dict[int, int] = {}  # By step: since when the ack was awaited.

    def look(self, state: SamplerState) -> None:
        """Warns of those that are new; looks at most once in ``LOOK_EVERY_S``."""
        now_s = self._clock.monotonic_s()
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + LOOK_EVERY_S
        steps = overdue_steps(state, self._config, self._clock.now_us())
        overdue = {step: state.batches[step].since_ts for step in steps}
        for step in sorted(dict(overdue.items() - self._told.items())):
            _log.warning(
                "sampler %r: the batch of step %d is neither acked nor released %g s after it was "
                "served (ack_timeout_s); it is given to nobody else. Where its trainer runs, "
                "ack(batch) is missing; where it died, its successor's resume decides about it",
                state.name,
                step,
                self._config.samplers[state.name].ack_timeout_s,
            )
        self._told = overdue
