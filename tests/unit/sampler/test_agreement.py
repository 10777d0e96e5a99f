"""Two processes mean the same sampler, or are told the key in which they differ."""

from __future__ import annotations

from typing import Any

import pytest

from harness.sampler_worlds import config_of
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.sampler import UnknownSampler
from rollstream.sampler.actor.agreement import check_same
from rollstream.sampler.errors import ConfigurationDiffers

NAME = "trainer-a"
RUNNING = config_of("file:///root", NAME)


def changed(section: str, **values: Any) -> RollstreamConfig:
    part = getattr(RUNNING, section).model_copy(update=values)
    return RUNNING.model_copy(update={section: part})


def with_sampler(**values: Any) -> RollstreamConfig:
    section = RUNNING.samplers[NAME].model_copy(update=values)
    return RUNNING.model_copy(update={"samplers": {NAME: section}})


END, CORRECT = "end that actor first", r"has one root: correct store\.root here"


def test_equal_configurations_agree() -> None:
    check_same(NAME, RUNNING, config_of("file:///root", NAME))


def test_samplers_of_other_names_may_differ() -> None:
    more = {**RUNNING.samplers, "other": RUNNING.samplers[NAME]}
    check_same(NAME, RUNNING, RUNNING.model_copy(update={"samplers": more}))


@pytest.mark.parametrize(
    ("given", "key", "value", "remedy"),
    [
        (changed("store", root="file:///elsewhere"), "store.root", "file:///elsewhere", CORRECT),
        (changed("kafka", namespace="other"), "kafka.namespace", "other", END),
        (with_sampler(seed=99), f"samplers.{NAME}.seed", 99, END),
    ],
)
def test_the_first_key_that_differs_is_named_with_both_values(
    given: RollstreamConfig, key: str, value: Any, remedy: str
) -> None:
    with pytest.raises(ConfigurationDiffers, match=remedy) as told:
        check_same(NAME, RUNNING, given)
    assert (told.value.key, told.value.given) == (key, value)
    assert repr(value) in str(told.value)
    assert repr(told.value.running) in str(told.value)


def test_a_secret_that_differs_is_not_shown() -> None:
    given = changed("kafka", client={"sasl.password": "hunter2"})
    with pytest.raises(ConfigurationDiffers, match=r"kafka\.client\.sasl\.password") as told:
        check_same(NAME, RUNNING, given)
    assert "hunter2" not in str(told.value)
    assert (told.value.running, told.value.given) == (None, None)


def test_a_configuration_without_the_sampler_is_refused() -> None:
    with pytest.raises(UnknownSampler, match="nobody"):
        check_same("nobody", RUNNING, RUNNING)
