"""The page of a run as one HTML document."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from harness.command_line import CommandLine
from harness.eventful_run import HOSTILE, NAME, EventfulRun
from rollstream.console.page.document import as_json, html_of
from rollstream.streams.errors import BrokerUnavailable


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> EventfulRun:
    return EventfulRun(tmp_path_factory.mktemp("run"))


def written(line: CommandLine, to: Path) -> dict[str, Any]:
    """The data of the page that ``report --html`` writes."""
    done = line.run("report", "--sampler", NAME, "--html", str(to))
    assert done.exit_code == 0, done.output
    (data,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', to.read_text(), re.DOTALL
    )
    found: dict[str, Any] = json.loads(data)
    return found


@pytest.mark.proves("F9")
def test_a_page_says_what_the_logs_and_the_files_say(run: EventfulRun, tmp_path: Path) -> None:
    data = written(run.line, tmp_path / "page.html")
    assert data["from"] == "its logs and files"
    facts = dict(data["facts"])
    assert (facts["trained"], facts["waiting"], facts["dropped"]) == (186, 32, 64)
    charts = {one["title"]: one for one in data["charts"]}
    assert [name for name, _ in charts["Drops by reason"]["lines"]] == ["stale"]
    assert sum(charts["Drops by reason"]["lines"][0][1]) == 64
    assert data["failures"] == [["web", "left early", 6]]
    assert data["knows_stuck"]
    assert len(data["rollouts"]) == len(data["rows"]) == 200


def test_a_page_from_files_alone_says_so_and_does_not_guess(
    run: EventfulRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any) -> Any:
        raise BrokerUnavailable("kafka:9092 refuses the connection; start it")

    monkeypatch.setattr("rollstream.console.services.Services.connected", refuses)
    data = written(run.line, tmp_path / "page.html")
    assert data["from"].startswith("its files alone: kafka:9092 refuses")
    assert "trained" not in dict(data["facts"])
    assert not data["knows_stuck"]
    assert len(data["charts"]) == 9
    assert data["rollouts"]


def test_no_text_of_a_run_is_markup(run: EventfulRun, tmp_path: Path) -> None:
    data = written(run.line, tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text()
    assert HOSTILE not in html
    assert html.count("<script") == html.count("</script>") == 2
    notes = {
        segment["metadata"].get("note")
        for one in data["rollouts"].values()
        for segment in one["segments"]
    }
    assert HOSTILE in notes


def test_a_browser_may_run_its_own_script_alone_and_load_nothing() -> None:
    html = html_of({"a": 1}).decode()
    (policy,) = re.findall('http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "connect-src 'none'" in policy
    assert "http://" not in policy


@pytest.mark.parametrize("value", ["\ud83d", 1 << 70, float("nan"), {"\udc00": ["\ud800", {1: 2}]}])
def test_any_metadata_becomes_json(value: Any) -> None:
    json.loads(as_json({"metadata": value}))
