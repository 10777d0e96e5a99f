"""``rollstream report --html`` of runs that are not the usual ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.published_run import Run

DATA = re.compile(rb'id="data">(.*?)</script>', re.DOTALL)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def page_of(run: Run, to: Path) -> dict[str, Any]:
    """The data of the page of ``trainer-a``."""
    done = run.line.run("report", "--sampler", "trainer-a", "--html", str(to))
    assert done.exit_code == 0, done.output
    found = DATA.search(to.read_bytes())
    assert found is not None
    page: dict[str, Any] = orjson.loads(found[1])
    return page


def test_a_run_that_has_no_rollout_is_a_page(run: Run, tmp_path: Path) -> None:
    page = page_of(run, tmp_path / "page.html")
    assert (page["found"], page["rollouts"]) == (0, {})


def test_rollouts_are_pages_before_the_first_batch(run: Run, tmp_path: Path) -> None:
    run.publish("young")
    run.seal(1)
    page = page_of(run, tmp_path / "page.html")
    assert {row["step"] for row in page["rows"]} == {None}
    assert len(page["rollouts"]) == page["found"] == 2


def test_a_rollout_whose_uid_has_lines_is_a_row_without_a_page(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Older producers let it pass.
    monkeypatch.setattr("rollstream.schemas.rules._CONTROL", re.compile("(?!)"))
    run.publish("two\nlines", "one line")
    run.seal(2)
    with run.sampler() as sampler:
        sampler.resume(None)
        sampler.publish_policy(0, policy_version="step-0")
        sampler.next_batch(0, 2)
    page = page_of(run, tmp_path / "page.html")
    assert page["found"] == 4
    assert {one["rollout_uid"] for one in page["rollouts"].values()} == {"one line-0", "one line-1"}
