"""Topics of a deployment: created, checked, and as they must be, on the twin and on Kafka."""

from __future__ import annotations

import uuid

from harness.brokers import TIMEOUT_S, World
from rollstream.streams.topics.check import check_copies, check_topics, require_topics
from rollstream.streams.topics.create import create_topics
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.specs import specs_for


def test_topics_that_were_created_are_as_they_must_be(world: World) -> None:
    admin = world.broker().admin()
    wanted = specs_for(Layout(f"t{uuid.uuid4().hex}"), {"math": 3, "code": 1}, ["trainer-a"])
    assert {difference.what for difference in check_topics(admin, wanted, TIMEOUT_S)} == {"missing"}
    assert create_topics(admin, wanted, TIMEOUT_S) == [spec.name for spec in wanted]
    require_topics(admin, wanted, TIMEOUT_S)
    assert create_topics(admin, wanted, TIMEOUT_S) == []
    assert check_copies(admin, wanted, TIMEOUT_S) == []


def test_what_differs_is_found(world: World) -> None:
    admin = world.broker().admin()
    layout = Layout(f"t{uuid.uuid4().hex}")
    create_topics(admin, specs_for(layout, {"math": 3}), TIMEOUT_S)
    other = specs_for(layout, {"math": 4}, rollouts_retention_hours=1)
    found = [(d.topic, d.what) for d in check_topics(admin, other, TIMEOUT_S)]
    assert found == [
        (layout.rollouts("math"), "partitions"),
        (layout.rollouts("math"), "retention.ms"),
        (layout.groups("math"), "partitions"),
        (layout.reports("math"), "partitions"),
        (layout.scores("math"), "partitions"),
        (layout.positions("math"), "partitions"),
    ]


def test_samplers_are_found_by_their_logs_whoever_configures_them(world: World) -> None:
    admin, name = world.broker().admin(), f"t{uuid.uuid4().hex}"
    layout = Layout(name)
    create_topics(admin, specs_for(layout, {"math": 1}, ["trainer-b", "trainer-a"]), TIMEOUT_S)
    others = [specs_for(Layout(other), {}, ["elsewhere"]) for other in (f"{name}2", f"x{name}")]
    newer = specs_for(Layout(name, 2), {}, ["newer"])
    for specs in (*others, newer):
        create_topics(admin, specs, TIMEOUT_S)
    assert layout.sampler_names(admin, TIMEOUT_S) == ["trainer-a", "trainer-b"]
    assert admin.topics(f"{name}.groups.", TIMEOUT_S) == [layout.groups("math")]
    assert admin.topics(f"{name}.nothing", TIMEOUT_S) == []
