"""Tables of the docs that repeat a list of the code have all of it, and nothing else."""

from __future__ import annotations

import re

from harness.pages import rows, section
from rollstream.schemas.reasons import SettleReason


def test_guarantees_name_every_end_of_a_rollout() -> None:
    assert sorted(rows("guarantees.md", "What ends a rollout")) == sorted(SettleReason)


def test_alarms_say_of_every_reason_what_to_do() -> None:
    text = section("operating/alarms.md", "Why a rollout was not sealed")
    assert {reason.value for reason in SettleReason} <= set(re.findall(r"`(\w+)`", text))
    assert set(rows("operating/alarms.md", "Why a rollout was not sealed")) <= set(SettleReason)
