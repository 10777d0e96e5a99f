"""What a gateway shows to Prometheus, and whether it is alive and ready."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from rollstream.gateway.intake import Intake
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.metrics import catalogue as of
from rollstream.runtime.metrics.liveness import Heartbeat
from rollstream.runtime.metrics.metric import Sample
from rollstream.runtime.metrics.watched import Watched, expose
from rollstream.streams.broker import Broker


def show_metrics(
    config: RollstreamConfig, intake: Intake, loop: Heartbeat, broker: Broker
) -> Callable[[], None]:
    """Shows the gateway's figures at a port of their own, so that nobody who may call the gateway
    reads them; returns what ends that.

    Args:
        loop: beats whenever the gateway's loop comes round.
        broker: whose outages it knows.
    """

    settings = config.metrics

    def all_samples() -> Iterator[Sample]:
        yield of.GATEWAY_LOOP_AGE.sample(loop.age_s())
        yield from samples(intake, config.environments)

    def stalled() -> str:
        age_s = loop.age_s()
        return f"the loop has not come round for {age_s:.0f} s" * (age_s > settings.stalled_after_s)

    def unready() -> str:
        return "this gateway ends" if intake.stopping else broker.outage()

    return expose(settings.host, settings.port, Watched("gateway", all_samples, stalled, unready))


def samples(intake: Intake, environments: Iterable[str]) -> Iterator[Sample]:
    """Yields a gateway's samples. Any thread may ask: each figure is one that the loop sets."""
    for resource, limit in intake.limits._asdict().items():
        yield of.GATEWAY_TAKEN.sample(limit.in_all, resource)
        yield of.GATEWAY_TAKEN_MAX.sample(limit.most, resource)
    for environment in environments:
        yield of.GATEWAY_REQUESTS.sample(intake.begun[environment], environment)
        yield of.GATEWAY_UNDELIVERED.sample(intake.undelivered[environment], environment)
    for kind, answers in dict(intake.refused).items():
        yield of.GATEWAY_REFUSED.sample(answers, kind)
