"""A real Prometheus that scrapes processes of a test, and what it says of our alerts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from harness.scraping import free_port
from harness.source_tree import ROOT
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.metrics.watched import LOOPBACK

PROGRAM = shutil.which("prometheus")
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
ANSWER_S = 60.0
ALERT_S = 60.0
LOOK_S = 0.2
WINDOW = "[8s]"  # Some scrapes.
CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: ["{alerts}"]
scrape_configs:
  - job_name: rollstream
    static_configs: [{{targets: {targets}}}]
"""
_MINUTES = re.compile(r"\[\d+m\]")


def alerts() -> dict[str, str]:
    """The expression of each alert, as users load it, but that one which looks back over minutes
    looks back over seconds: so it does not see the fault before, and turns false within the test.
    """
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    return {rule["alert"]: _MINUTES.sub(WINDOW, rule["expr"]) for rule in rules}


class Prometheus:
    """Asks one that runs."""

    def __init__(self, port: int) -> None:
        self._at = f"http://{LOOPBACK}:{port}/api/v1"
        self._alerts = alerts()

    def ask(self, path: str, **query: str) -> dict[str, Any]:
        """The data of its answer, as soon as it answers."""
        deadline = Deadline(ANSWER_S)
        while True:
            try:
                with urlopen(f"{self._at}/{path}?{urlencode(query)}", timeout=ANSWER_S) as answer:
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
        deadline, seen = Deadline(ANSWER_S), list[dict[str, Any]]()
        while not (seen and float(seen[0]["value"][1]) == wanted):
            assert not deadline.passed(), f"{expression} is {seen}, not {wanted}"
            seen = self.ask("query", query=expression)["result"]
            deadline.wait(LOOK_S)

    def until_true(self, *names: str, after_s: float = 0.0) -> None:
        """Returns once the expression of each of these alerts has been true.

        Args:
            after_s: for so long nothing is wrong, as they see it.
        """
        self._until(names, Deadline(after_s + ALERT_S), true=True)

    def until_false(self, *names: str) -> None:
        """Returns once the expression of each of these alerts has been false."""
        self._until(names, Deadline(ALERT_S), true=False)

    def _until(self, names: Collection[str], deadline: Deadline, *, true: bool) -> None:
        left = {name: self._result(name) for name in names}
        while left := {name: seen for name, seen in left.items() if bool(seen) is not true}:
            assert not deadline.passed(), f"for {deadline.timeout_s:g} s not {true}: {left}"
            deadline.wait(LOOK_S)
            left = {name: self._result(name) for name in left}

    def _result(self, name: str) -> list[Any]:
        found: list[Any] = self.ask("query", query=self._alerts[name])["result"]
        return found


@contextmanager
def prometheus(folder: Path, *targets: str) -> Iterator[Prometheus]:
    """Scrapes these addresses each second; the test is skipped where none is installed."""
    if PROGRAM is None:
        pytest.skip("prometheus is not installed")
    config = folder / "prometheus.yml"
    scraped = json.dumps([one.removeprefix("http://") for one in targets])
    config.write_text(CONFIG.format(alerts=ALERTS, targets=scraped))
    port = free_port()
    process = subprocess.Popen(
        [
            PROGRAM,
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={LOOPBACK}:{port}",
            "--log.level=error",
        ]
    )
    try:
        yield Prometheus(port)
    finally:
        process.kill()
        process.wait(ANSWER_S)
