"""The page of other systems' names names what there is, and the defaults that there are."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from harness.pages import section
from rollstream import consumers, producers, sampler, store
from rollstream.producers.rollouts.arguments import RolloutArguments
from rollstream.runtime.config.ready_packs import ChannelBConfig, ReadyPacksConfig, ScheduleConfig
from rollstream.runtime.config.sections import EnvironmentConfig, SamplerConfig
from rollstream.sampler import TrajectoryPool
from rollstream.schemas import ids, records

CONFIGURED = (
    EnvironmentConfig,
    SamplerConfig,
    ReadyPacksConfig,
    ScheduleConfig,
    ChannelBConfig,
)
RECORDS = (
    records.RolloutRecord,
    records.RolloutGroup,
    records.RolloutMetadata,
    records.SampledBatch,
    ids.GroupKey,
)
SECTIONS = {
    "[samplers.NAME]",
    "[samplers.NAME.ready_packs]",
    "[samplers.NAME.ready_packs.schedule]",
    "[samplers.NAME.ready_packs.channel_b]",
}
METRIC = "stage2_ab/async/b_step_skipped_due_to_queue"
CODE = re.compile(r"`([^`]+)`")


def ours(title: str) -> list[tuple[str, str]]:
    """Of each row of the section's table the other system's name, and the cell with ours."""
    lines = [line for line in section("vocabulary.md", title).splitlines() if line[:2] == "| "]
    at = lines[0].split(" | ").index("ours |" if lines[0].endswith("ours |") else "ours")
    cells = [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in lines[1:]]
    return [(row[0], row[at]) for row in cells]


def names_of(public: Any) -> Iterator[str]:
    """The name of something public, and what it has: attributes, fields, and arguments."""
    yield public.__name__
    yield from dir(public)
    yield from getattr(public, "__annotations__", {})
    for one in (public, *(getattr(public, name, None) for name in dir(public))):
        if inspect.isfunction(one) or inspect.isclass(one):
            try:
                yield from inspect.signature(one).parameters
            except ValueError:  # Of what is built in.
                continue


def known() -> set[str]:
    found = {*RolloutArguments.__annotations__}
    for section_ in CONFIGURED:
        found |= section_.model_fields.keys()
    for module in (consumers, producers, sampler, store):
        for name in module.__all__:
            if inspect.isclass(public := getattr(module, name)) or inspect.isfunction(public):
                found.update(names_of(public))
    for record in RECORDS:
        found.update(names_of(record))
    return found


def default_of(name: str) -> Any:
    for section_ in CONFIGURED:
        if name in section_.model_fields:
            return section_.model_fields[name].default
    for field in fields(records.RolloutRecord):
        if field.name == name:
            return field.default
    return inspect.signature(TrajectoryPool).parameters[name].default


def test_each_name_that_is_said_to_be_ours_is() -> None:
    there = known()
    unknown = [
        f"{theirs}: {name}"
        for title in ("Names of the specifications", "Defaults that differ")
        for theirs, cell in ours(title)
        for code in CODE.findall(cell)
        if code not in SECTIONS and code != METRIC
        for name in re.findall(r"[A-Za-z_]\w*", code.partition(" = ")[0])
        if name not in there
    ]
    assert unknown == []


def test_names_that_are_the_same_are_there() -> None:
    before_the_table = section("vocabulary.md", "Names of the specifications").partition("\n| ")[0]
    assert {*CODE.findall(before_the_table)} <= known()


def test_each_default_that_is_said_to_be_ours_is() -> None:
    stated = [
        code.partition(" = ")
        for _, cell in ours("Defaults that differ")
        for code in CODE.findall(cell.replace("no `", "no `None = "))
    ]
    assert len(stated) >= 10
    for name, equals, value in stated:
        if name == "None":
            assert default_of(value) is None, value
        elif equals:
            assert default_of(name) == ast.literal_eval(value), name
