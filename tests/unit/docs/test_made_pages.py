"""Pages that are made of the code are as the code makes them now."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from harness import commands_page, configuration_page, metrics_page
from rollstream.runtime.config.sections import SamplerConfig

PAGES = (commands_page, configuration_page, metrics_page)


@pytest.mark.parametrize("made", PAGES, ids=lambda made: Path(made.PAGE).stem)
def test_a_page_is_as_the_code_makes_it(made: ModuleType) -> None:
    told = f"run `cd tests && ../.venv/bin/python -m {made.__name__}`"
    assert made.PAGE.read_text(encoding="utf-8") == made.page(), told


def test_every_command_has_an_example_of_its_own() -> None:
    sections = re.split(r"^## (.+)$", commands_page.page(), flags=re.MULTILINE)[1:]
    for name, text in zip(sections[::2], sections[1::2], strict=True):
        example = text.split("Example:")[1]
        assert f"\n{name}" in example, name


def test_every_key_of_a_sampler_has_a_default_and_a_meaning() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (\S.+) \|$", configuration_page.page(), re.M)
    keys = {key for key, _, _ in rows}
    assert set(SamplerConfig.model_fields) - {"ready_packs"} <= keys
    assert ("bootstrap", "**required**: text") in {(key, default) for key, default, _ in rows}
