"""A real Prometheus scrapes a run, evaluates every alert, and answers every panel of the board."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from harness.prometheus import prometheus
from harness.scraping import ANY_PORT, addresses
from harness.sealing import SealWorld
from harness.source_tree import ROOT

BOARD = ROOT / "deploy" / "grafana" / "rollstream.json"
VARIABLES = {"$__rate_interval": "10s", "$environment": ".*", "$sampler": ".*"}


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
