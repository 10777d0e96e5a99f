"""Reads what a process shows to Prometheus, as Prometheus does."""

from __future__ import annotations

import socket
from urllib.error import HTTPError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from rollstream.runtime.config.metrics import MetricsConfig
from rollstream.runtime.metrics import watched
from rollstream.runtime.metrics.watched import LOOPBACK

ANSWER_S = 10.0
ANY_PORT = MetricsConfig(port=0)
"""A section with which a process shows its metrics at a port of its own."""


def free_port() -> int:
    """A port of loopback that nobody listens at."""
    with socket.create_server((LOOPBACK, 0)) as free:
        port: int = free.getsockname()[1]
        return port


def addresses() -> list[str]:
    """Where this process shows metrics."""
    found = [server.address for server in watched._servers.values()]
    return [f"http://{host}:{port}" for host, port in filter(None, found)]


def get(path: str, at: str | None = None) -> tuple[int, str]:
    """Status and body; by default of the only address of this process."""
    [address] = addresses() if at is None else [at]
    try:
        with urlopen(f"{address}{path}", timeout=ANSWER_S) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def scraped(at: str | None = None) -> dict[tuple[str, ...], float]:
    """Each value, by the name of its sample and the values of its labels, those in the order of
    the labels' names."""
    families = text_string_to_metric_families(get("/metrics", at)[1])
    return {
        (one.name, *(value for _, value in sorted(one.labels.items()))): one.value
        for family in families
        for one in family.samples
    }
