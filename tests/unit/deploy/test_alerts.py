"""Alerts and board: they name what the catalogue has, and each alert fires for what it names."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.pages import section
from harness.source_tree import ROOT
from rollstream.runtime.metrics.catalogue import CATALOGUE
from rollstream.runtime.metrics.metric import Kind
from rollstream.status import ERROR, Alarm

ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
BOARD = ROOT / "deploy" / "grafana" / "rollstream.json"
ALARMS = "operating/alarms.md"
PROMTOOL = shutil.which("promtool")
# Labels that Prometheus adds, or its functions.
GIVEN = {"instance", "job", "le"}
OTHERS = {
    "up": GIVEN,
    "process_open_fds": GIVEN,
    "process_max_fds": GIVEN,
    "process_resident_memory_bytes": GIVEN,
    "process_cpu_seconds_total": GIVEN,
}
_NAME = re.compile(r"\b((?:rollstream|process)_[a-z_]+|up)\b(?:\{([^}]*)\})?")
_BY = re.compile(r"by \(([^)]*)\)")


def labels_by_name() -> dict[str, set[str]]:
    """The labels of each series that a process may have, by its name."""
    found = dict(OTHERS)
    for one in CATALOGUE:
        ends = ("_bucket", "_sum", "_count") if one.kind is Kind.HISTOGRAM else ("",)
        found |= {f"{one.name}{end}": {*one.labels} | GIVEN for end in ends}
    return found


def rules() -> list[dict[str, Any]]:
    text = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
    return [rule for group in text["groups"] for rule in group["rules"]]


def panels() -> Iterator[tuple[str, str, str]]:
    """Title, expression and legend of each series of the board."""
    for panel in json.loads(BOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]


def unknown_in(expression: str, told: str = "") -> list[str]:
    """What an expression, or the text that goes with it, names and no process shows."""
    known, wrong = labels_by_name(), []
    found = _NAME.findall(expression)
    have: set[str] = set()
    for name, selector in found:
        if name not in known:
            wrong.append(name)
            continue
        have |= known[name]
        named = re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", selector)
        wrong += [f"{name}: {label}" for label in named if label not in known[name]]
    by = {label.strip() for labels in _BY.findall(expression) for label in labels.split(",")}
    wrong += sorted(by - have)
    left = by or have
    for label in re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", told):
        if label not in left:
            wrong.append(f"{label} of the text")
    return wrong if found else [f"no metric in {expression}"]


def test_every_alert_names_metrics_and_labels_of_the_catalogue() -> None:
    for rule in rules():
        told = f"{rule['annotations']['summary']} {rule['labels']['severity']}"
        assert unknown_in(rule["expr"], told) == [], rule["alert"]


def test_every_panel_names_metrics_and_labels_of_the_catalogue() -> None:
    found = [*panels()]
    assert found
    for title, expression, legend in found:
        assert unknown_in(expression, legend) == [], title


def test_the_panels_of_the_board_overlap_nowhere_and_have_ids_of_their_own() -> None:
    board = json.loads(BOARD.read_text(encoding="utf-8"))
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len({*ids})


def stuck_alerts() -> dict[str, str]:
    """The alert of each alarm."""
    found = {}
    for rule in rules():
        if alarm := re.search(r'rollstream_stuck\{alarm="(\w+)"\}', rule["expr"]):
            found[alarm[1]] = rule["alert"]
    return found


def test_every_alarm_of_status_has_an_alert_and_a_row_of_the_page() -> None:
    alerts = stuck_alerts()
    assert {*alerts} == {alarm.value for alarm in Alarm}
    table = section(ALARMS, "A stage is stuck")
    named = re.findall(r"\| `([a-z_]+)` \|$", table, re.MULTILINE)
    assert named == [alarm.value for alarm in Alarm]


# What makes each alert of a process fire: series, and the minute by which it has fired.
FIRING: dict[str, tuple[list[tuple[str, str]], int]] = {
    "RollstreamMonitorBlind": ([('rollstream_ready{part="monitor"}', "0x10")], 3),
    "RollstreamDown": ([('up{job="rollstream"}', "0x10")], 3),
    "RollstreamStalled": ([('rollstream_alive{part="sealer"}', "0x10")], 2),
    "RollstreamNotReady": ([('rollstream_ready{part="gateway"}', "0x20")], 11),
    "RollstreamScrapeFails": ([("rollstream_scrape_failures_total", "0+1x10")], 5),
    "RollstreamStoreFails": ([('rollstream_store_failures_total{call="read"}', "0+1x20")], 12),
    "RollstreamStoreSlow": (
        [
            ('rollstream_store_call_seconds_bucket{call="create",le="5.0"}', "0x30"),
            ('rollstream_store_call_seconds_bucket{call="create",le="10.0"}', "0+5x30"),
            ('rollstream_store_call_seconds_bucket{call="create",le="+Inf"}', "0+5x30"),
        ],
        20,
    ),
    "RollstreamBrokerFails": (
        [('rollstream_broker_append_failures_total{topic="t"}', "0+1x20")],
        12,
    ),
    "RollstreamBrokerSlow": (
        [
            ('rollstream_broker_append_seconds_bucket{topic="t",le="2.5"}', "0x30"),
            ('rollstream_broker_append_seconds_bucket{topic="t",le="5.0"}', "0+5x30"),
            ('rollstream_broker_append_seconds_bucket{topic="t",le="+Inf"}', "0+5x30"),
        ],
        20,
    ),
    "RollstreamFlushSlow": (
        [
            ('rollstream_sealer_flush_seconds_bucket{environment="math",le="10.0"}', "0x30"),
            ('rollstream_sealer_flush_seconds_bucket{environment="math",le="30.0"}', "0+5x30"),
            ('rollstream_sealer_flush_seconds_bucket{environment="math",le="+Inf"}', "0+5x30"),
        ],
        20,
    ),
    "RollstreamSealerMemory": (
        [
            ("rollstream_sealer_memory_bytes", "95x20"),
            ("rollstream_sealer_memory_max_bytes", "100x20"),
        ],
        11,
    ),
    "RollstreamScoresAside": (
        [('rollstream_sealer_scores_aside{environment="math",partition="0"}', "1x10")],
        3,
    ),
    "RollstreamForeignRecords": (
        [('rollstream_sealer_foreign_records{environment="math",partition="0"}', "0+1x10")],
        5,
    ),
    "RollstreamDeadLetters": ([("rollstream_sealer_dead_letters_total", "0+1x10")], 5),
    "RollstreamSamplerLogAside": ([('rollstream_sampler_aside_logs{sampler="t"}', "1x10")], 3),
    "RollstreamScoresBehind": (
        [('rollstream_sampler_scores_behind{sampler="t",environment="math"}', "1x20")],
        11,
    ),
    "RollstreamGatewayFull": (
        [
            ('rollstream_gateway_taken{resource="requests"}', "95x10"),
            ('rollstream_gateway_taken_max{resource="requests"}', "100x10"),
        ],
        6,
    ),
    "RollstreamGatewayUndelivered": (
        [('rollstream_gateway_undelivered_total{environment="math"}', "0+1x10")],
        5,
    ),
    "RollstreamNotDelivered": ([("rollstream_producer_failed_entries_total", "0+1x10")], 5),
    "RollstreamFiles": (
        [
            ('process_open_fds{job="rollstream"}', "90x10"),
            ('process_max_fds{job="rollstream"}', "100x10"),
        ],
        6,
    ),
}


def test_every_alert_of_a_process_has_a_case() -> None:
    named = {rule["alert"] for rule in rules()}
    assert named == {*FIRING, *stuck_alerts().values()}


def fires(alert: str, series: list[tuple[str, str]], minute: int, count: int) -> dict[str, Any]:
    """A test of promtool: so many alerts of this name fire then."""
    return {
        "name": f"{alert} {'fires' if count else 'is quiet'}",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)',
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": "{}", "value": count}],
            }
        ],
    }


def quiet(values: str) -> str:
    """The same series when nothing is wrong."""
    level, _, times = values.partition("x")
    return f"{1 if level == '0' else 0}x{times}"


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_each_alert_fires_for_what_it_names_and_for_nothing_else(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    tests = []
    for alarm, alert in stuck_alerts().items():
        name = f'rollstream_stuck{{stage="s",alarm="{alarm}",level="{ERROR}"}}'
        tests += [fires(alert, [(name, "1x10")], minute, int(minute > 2)) for minute in (1, 3)]
        tests.append(fires(alert, [(name.replace(alarm, "another"), "1x10")], 5, 0))
    for alert, (series, minute) in FIRING.items():
        tests.append(fires(alert, series, minute, 1))
        if not any("_max" in name or "_bucket" in name for name, _ in series):
            calm = [(name, quiet(values)) for name, values in series]
            tests.append(fires(alert, calm, minute, 0))
    file = tmp_path / "alerts.test.yml"
    file.write_text(
        json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests})
    )
    done = subprocess.run(
        [PROMTOOL, "test", "rules", str(file)],
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
