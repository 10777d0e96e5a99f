"""Tables of the docs that repeat a list of the code have all of it, and nothing else."""

from __future__ import annotations

import re

import pytest
from pydantic import BaseModel

from harness.pages import rows, section
from rollstream.runtime.config import sections
from rollstream.runtime.config.gateway import GatewayConfig
from rollstream.runtime.config.ready_packs import (
    ChannelBConfig,
    ReadyPacksConfig,
    ScheduleConfig,
)
from rollstream.schemas.reasons import SettleReason

SECTIONS: dict[str, type[BaseModel]] = {
    "[kafka]": sections.KafkaConfig,
    "[store]": sections.StoreConfig,
    "[environments.NAME]": sections.EnvironmentConfig,
    "[samplers.NAME]": sections.SamplerConfig,
    "[samplers.NAME.ready_packs]": ReadyPacksConfig,
    "[samplers.NAME.ready_packs.schedule]": ScheduleConfig,
    "[samplers.NAME.ready_packs.channel_b]": ChannelBConfig,
    "[gateway]": GatewayConfig,
}


def test_guarantees_name_every_end_of_a_rollout() -> None:
    assert sorted(rows("guarantees.md", "What ends a rollout")) == sorted(SettleReason)


def test_alarms_say_of_every_reason_what_to_do() -> None:
    text = section("operating/alarms.md", "Why a rollout was not sealed")
    assert {reason.value for reason in SettleReason} <= set(re.findall(r"`(\w+)`", text))
    assert set(rows("operating/alarms.md", "Why a rollout was not sealed")) <= set(SettleReason)


@pytest.mark.parametrize("name", SECTIONS)
def test_api_lists_the_keys_of_a_section_and_those_without_a_default(name: str) -> None:
    lines = section("api.md", "Configuration").splitlines()
    cells = [line.split(" | ")[1] for line in lines if line.startswith(f"| `{name}`")]
    listed = re.findall(r"(\*\*)?`(\w+)`\*{0,2} ?(?=\(|,|$| \|)", " , ".join(cells))
    fields = SECTIONS[name].model_fields
    keys = {key for _, key in listed}
    assert keys == set(fields)
    assert {key for bold, key in listed if bold} == {
        key for key, field in fields.items() if field.is_required()
    }
