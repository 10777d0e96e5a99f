"""The section ``[metrics]``."""

from __future__ import annotations

from pydantic import Field, FiniteFloat

from rollstream.runtime.config.section import Section
from rollstream.runtime.metrics.watched import LOOPBACK


class MetricsConfig(Section):
    """Says where sealers, samplers and gateways show [metrics](../operating/metrics.md), `/healthz`
    and `/readyz`. Give each process of a machine another port, with `ROLLSTREAM_METRICS__PORT`."""

    host: str = Field(default=LOOPBACK, min_length=1)
    """Address to listen at. There are no tokens: on another one than loopback everybody who
    reaches it may read."""
    port: int | None = Field(default=None, ge=0, le=65_535)
    """Port. 0: any that is free; the log names it. None: nothing is shown."""
    stalled_after_s: FiniteFloat = Field(default=60.0, gt=0)
    """Seconds without progress after which `/healthz` answers 503. Not less than 10 if supervisors
    restart processes by it: a broker may take so long to answer."""
