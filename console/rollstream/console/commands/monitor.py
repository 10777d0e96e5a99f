"""``rollstream monitor``"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Annotated

import typer

from rollstream.console.options import CONFIG_FILE, TIMEOUT_S, ConfigOption, TimeoutOption
from rollstream.console.services import LOOK_FAILURES, Services, figures_of, services_of
from rollstream.runtime.config.load import ConfigError, load_config
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.metrics import catalogue as of
from rollstream.runtime.metrics.metric import Sample
from rollstream.runtime.metrics.timings import Timings, timed
from rollstream.runtime.metrics.watched import Watched, expose
from rollstream.status import samples, stuck_stages

EVERY_S = 30.0
_log = logging.getLogger("rollstream.monitor")


def monitor(
    context: typer.Context,
    config: ConfigOption = CONFIG_FILE,
    every_s: Annotated[
        float,
        typer.Option(help="Seconds between two looks.", metavar="SECONDS", min=1.0),
    ] = EVERY_S,
    timeout_s: TimeoutOption = TIMEOUT_S,
) -> None:
    """Looks at the deployment as `status` does, every 30 s, and shows what is stuck to Prometheus.

    It listens at `metrics.host` and `metrics.port`, writes nothing and disturbs nobody. One is
    enough for a deployment. It goes on while Kafka is away, and ends at SIGTERM or Ctrl-C.
    """
    services, settings = services_of(context), load_config(config)
    if settings.metrics.port is None:
        raise ConfigError(
            "metrics.port is not set, so that nobody could read what is stuck; write port = 9464 "
            "under [metrics], or set ROLLSTREAM_METRICS__PORT"
        )
    stopping = services.stopping()
    monitored = Monitor(services, settings, every_s, timeout_s)
    watched = Watched("monitor", monitored.samples, monitored.stalled, monitored.unready)
    end = expose(settings.metrics.host, settings.metrics.port, watched)
    try:
        while not stopping.is_set():
            monitored.look()
            services.clock.wait(stopping, every_s)
    finally:
        end()


class Monitor:
    """The newest look at a deployment. One thread looks; others read what it saw."""

    def __init__(
        self, services: Services, settings: RollstreamConfig, every_s: float, timeout_s: float
    ) -> None:
        self._services = services
        self._settings = settings
        self._every_s, self._timeout_s = every_s, timeout_s
        self._timings = Timings()
        self._lock = threading.Lock()
        self._seen: tuple[Sample, ...] = ()
        self._why_not = "it has not looked so far"
        self._turn_s = self._seen_s = services.clock.monotonic_s()

    def look(self) -> None:
        """Reads the logs, or keeps what it saw last, and says why, where that fails."""
        services, settings = self._services, self._settings
        self._turn_s = services.clock.monotonic_s()
        deadline = Deadline(self._timeout_s, services.clock)
        try:
            with (
                timed(self._timings.observe, services.clock, of.LOOK),
                services.connected(settings, self._timeout_s) as broker,
            ):
                figures = figures_of(services, settings, broker, deadline)
        except LOOK_FAILURES as error:
            self._why_not = str(error)
            _log.warning("it cannot look: %s; it is tried again in %g s", error, self._every_s)
            return
        finally:
            self._turn_s = services.clock.monotonic_s()
        stuck = stuck_stages(figures, settings)
        with self._lock:
            self._seen = tuple(samples(figures, stuck))
            self._seen_s, self._why_not = services.clock.monotonic_s(), ""
        for verdict in stuck:
            _log.warning("stuck: %s: %s", verdict.stage, verdict.reason)

    def samples(self) -> Iterator[Sample]:
        """Yields what it saw last, and how long ago that was."""
        with self._lock:
            seen, age_s = self._seen, self._services.clock.monotonic_s() - self._seen_s
        yield of.LOOK_AGE.sample(age_s)
        yield from seen
        yield from self._timings.samples()

    def stalled(self) -> str:
        """Why it is not alive; empty: it is."""
        turn_s = self._services.clock.monotonic_s() - self._turn_s
        may_s = max(self._every_s, self._timeout_s)  # It waits for its next look, or looks.
        late = turn_s > may_s + self._settings.metrics.stalled_after_s
        return f"a look has not ended for {turn_s:.0f} s" if late else ""

    def unready(self) -> str:
        """Why it could not look the last time, or cannot now; empty: it could."""
        return self._why_not or self.stalled()
