"""The board by Grafana's own types: what it does not know, it would drop without a word."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import prometheus, stat, timeseries
from grafana_foundation_sdk.models.dashboard import Dashboard, Panel, RowPanel

BOARD = Path(__file__).parents[3] / "deploy" / "grafana" / "rollstream.json"
OPTIONS = {"stat": stat.Options, "timeseries": timeseries.Options}
register_default_plugins()


@pytest.fixture
def written() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(BOARD.read_bytes())
    return found


def problems(written: dict[str, Any]) -> list[str]:
    """What Grafana would drop, or not understand."""
    board = Dashboard.from_json(written)
    return [*_lost(written, json.loads(JSONEncoder().encode(board)), "board"), *_unknown(board)]


def _lost(written: Any, kept: Any, at: str) -> Iterator[str]:
    """The fields that do not stand in what Grafana keeps, or not with the same value."""
    if isinstance(written, dict) and isinstance(kept, dict):
        for name, value in written.items():
            yield from _lost(value, kept.get(name), f"{at}.{name}")
    elif isinstance(written, list) and isinstance(kept, list) and len(written) == len(kept):
        for index, (value, other) in enumerate(zip(written, kept, strict=True)):
            yield from _lost(value, other, f"{at}[{index}]")
    elif written != kept:
        yield f"{at} is {written!r}, and Grafana has {kept!r}"


def _unknown(found: Any) -> Iterator[str]:
    """The values that are none of their field's."""
    if isinstance(found, list | dict):
        for one in found.values() if isinstance(found, dict) else found:
            yield from _unknown(one)
    if not type(found).__module__.startswith("grafana_foundation_sdk."):
        return
    for name, hint in get_type_hints(type(found)).items():
        value = getattr(found, name)
        yield from _unknown(value)
        kinds = [one for one in (hint, *get_args(hint)) if isinstance(one, type)]
        known = {each.value for one in kinds if issubclass(one, Enum) for each in one}
        if known and isinstance(value, str) and value not in known:
            yield f"{type(found).__name__}.{name} is {value!r}, none of {sorted(known)}"


def test_grafana_keeps_every_field_of_the_board(written: dict[str, Any]) -> None:
    assert problems(written) == []


def test_every_panel_has_the_options_and_targets_of_its_type(written: dict[str, Any]) -> None:
    panels = Dashboard.from_json(written).panels or []
    assert len(panels) == len(written["panels"])
    for panel in panels:
        if isinstance(panel, RowPanel):
            continue
        assert isinstance(panel, Panel)
        assert isinstance(panel.options, OPTIONS[panel.type_val]), panel.title
        assert panel.targets, panel.title
        assert all(isinstance(one, prometheus.Dataquery) for one in panel.targets), panel.title


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("colourMode", "background", "colourMode is 'background', and Grafana has None"),
        ("colorMode", "purple", "color_mode is 'purple', none of"),
        ("reduceOptions", {"calc": []}, "reduceOptions.calc is"),
    ],
)
def test_a_field_or_a_value_that_grafana_does_not_know_is_found(
    written: dict[str, Any], field: str, value: Any, told: str
) -> None:
    panel = next(one for one in written["panels"] if one["type"] == "stat")
    panel["options"][field] = value
    assert told in "; ".join(problems(written))
