"""Pages for users do what they print."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from harness.printed_names import NAMES
from harness.printed_pages import (
    CONFIGURATION,
    QUICKSTART,
    Block,
    PrintedPage,
    blocks,
    free_port,
    printed,
)
from harness.source_tree import ROOT
from rollstream.runtime.config.sections import RollstreamConfig

README = "../README.md"
GUIDES = sorted(f"guides/{path.name}" for path in (ROOT / "docs/guides").glob("*.md"))
COMING_FROM = sorted(
    f"coming_from/{path.name}" for path in (ROOT / "docs/coming_from").glob("*.md")
)
OPERATING = sorted(f"operating/{path.name}" for path in (ROOT / "docs/operating").glob("*.md"))
RUN = [*GUIDES, *COMING_FROM]
# They need a library that the tests' environment has not; ``tests/trainers`` has it.
COMPILED = {
    "guides/pytorch.md",
    "guides/trl.md",
    "guides/verl.md",
    "coming_from/trl.md",
    "coming_from/verl.md",
    "coming_from/prime_rl.md",
    "coming_from/skyrl.md",
}
TESTING = "guides/testing.md"
PAGES = [README, "install.md", QUICKSTART, "concepts.md", *RUN, *OPERATING]


def test_the_quickstart_runs_in_an_empty_folder(tmp_path: Path) -> None:
    PrintedPage(QUICKSTART, tmp_path, free_port()).run()


@pytest.mark.broker
def test_the_readmes_worker_and_trainer_train(kafka_bootstrap: str, tmp_path: Path) -> None:
    page = PrintedPage(README, tmp_path, port_of(kafka_bootstrap), NAMES[README])
    with page.after_the_quickstart():
        page.run()
        with page.beside("python worker.py"):
            page.finish(["python", "trainer.py"], 0)


@pytest.mark.broker
@pytest.mark.parametrize("name", [name for name in RUN if name not in COMPILED | {TESTING}])
def test_a_guide_runs_after_the_quickstart(name: str, kafka_bootstrap: str, tmp_path: Path) -> None:
    page = PrintedPage(name, tmp_path, port_of(kafka_bootstrap), NAMES.get(name))
    with page.after_the_quickstart():
        page.run()


def test_the_guide_to_tests_runs_without_kafka(tmp_path: Path) -> None:
    PrintedPage(TESTING, tmp_path, free_port()).run()


def port_of(bootstrap: str) -> int:
    return int(bootstrap.rpartition(":")[2])


def of(language: str) -> list[Any]:
    """The blocks of that language, of all pages."""
    return [
        pytest.param(block, id=f"{name}:{block.line}")
        for name in PAGES
        for block in blocks(name)
        if block.language == language
    ]


@pytest.mark.parametrize("block", of("python"))
def test_python_is_python(block: Block) -> None:
    ast.parse(block.text)


@pytest.mark.parametrize("block", of("toml"))
def test_configuration_is_taken(block: Block) -> None:
    base = tomllib.loads(printed(QUICKSTART, CONFIGURATION))
    RollstreamConfig.model_validate(merged(base, tomllib.loads(block.text)))


def merged(base: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Both; of what both have, that of ``other``."""
    found = {**base, **other}
    for key in base.keys() & other.keys():
        if isinstance(base[key], dict) and isinstance(other[key], dict):
            found[key] = merged(base[key], other[key])
    return found


@pytest.mark.parametrize("block", of("sh"))
def test_what_is_installed_exists(block: Block) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for extras in re.findall(r"rollstream\[([\w,-]+)\]", block.text):
        assert set(extras.split(",")) <= set(project["optional-dependencies"])
    for target in re.findall(r"^make ([\w-]+)", block.text, re.MULTILINE):
        assert f"\n{target}: " in makefile
