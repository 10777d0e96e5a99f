"""A real Prometheus scrapes a run, evaluates every alert, and answers every panel of the board.

Runs where ``prometheus`` is in PATH: a release of it, or what ``go build`` makes of its sources.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from harness.scraping import ANY_PORT, addresses
from harness.sealing import SealWorld
from harness.source_tree import ROOT
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.metrics.watched import LOOPBACK

PROMETHEUS = shutil.which("prometheus")
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
BOARD = ROOT / "deploy" / "grafana" / "rollstream.json"
TIMEOUT_S = 60.0
LOOK_S = 0.2
CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{alerts}"]
scrape_configs:
  - job_name: rollstream
    static_configs: [{{targets: ["{target}"]}}]
"""
VARIABLES = {"$__rate_interval": "10s", "$environment": ".*", "$sampler": ".*"}
pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed")


class Prometheus:
    """Asks one that runs."""

    def __init__(self, port: int) -> None:
        self._at = f"http://{LOOPBACK}:{port}/api/v1"

    def ask(self, path: str, **query: str) -> dict[str, Any]:
        """The data of its answer, as soon as it answers."""
        deadline = Deadline(TIMEOUT_S)
        while True:
            try:
                with urlopen(f"{self._at}/{path}?{urlencode(query)}", timeout=TIMEOUT_S) as answer:
                    found: dict[str, Any] = json.load(answer)
            except URLError:
                assert not deadline.passed(), "Prometheus does not answer"
                deadline.wait(LOOK_S)
            else:
                assert found["status"] == "success", found
                data: dict[str, Any] = found["data"]
                return data

    def value(self, expression: str, wanted: float) -> None:
        """Returns once the expression has this value."""
        deadline, seen = Deadline(TIMEOUT_S), list[dict[str, Any]]()
        while not (seen and float(seen[0]["value"][1]) == wanted):
            assert not deadline.passed(), f"{expression} is {seen}, not {wanted}"
            seen = self.ask("query", query=expression)["result"]
            deadline.wait(LOOK_S)


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    """Scrapes the target each second."""
    assert PROMETHEUS is not None
    config = folder / "prometheus.yml"
    config.write_text(CONFIG.format(alerts=ALERTS, target=target.removeprefix("http://")))
    with socket.create_server((LOOPBACK, 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            PROMETHEUS,
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={LOOPBACK}:{port}",
            "--log.level=error",
        ]
    )
    try:
        yield Prometheus(port)
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


def test_a_run_is_scraped_and_alerts_and_board_are_evaluated(tmp_path: Path) -> None:
    with SealWorld(partitions=1) as world:
        world.config = world.config.model_copy(update={"metrics": ANY_PORT})
        with world.sealer() as sealer:
            for uid in ("r1", "r2"):
                world.publish(uid)
            world.run(sealer)
            [address] = addresses()
            with prometheus(tmp_path, address) as asked:
                asked.value('rollstream_sealer_sealed_groups_total{environment="math"}', 1)
                asked.value("rollstream_alive", 1)
                world.publish("r3")
                world.publish("r4")
                world.run(sealer)
                asked.value("rollstream_sealer_sealed_groups_total", 2)
                asked.value('ALERTS{alertname="RollstreamMonitorBlind"}', 1)  # None runs.
                rules = [
                    rule
                    for group in asked.ask("rules")["groups"]
                    for rule in group["rules"]
                    if rule["health"] != "ok"
                ]
                assert rules == []
                for expression in expressions():
                    asked.ask("query", query=expression)


def expressions() -> Iterator[str]:
    """Of the board, as Grafana asks them."""
    for panel in json.loads(BOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            yield expression
