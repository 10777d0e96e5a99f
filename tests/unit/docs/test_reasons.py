"""Whoever meets a settle reason finds what happened and what to do."""

from __future__ import annotations

from harness.pages import rows, section
from rollstream.schemas.reasons import SettleReason


def test_guarantees_say_of_every_reason_what_happened() -> None:
    assert sorted(rows("guarantees.md", "What ends a rollout")) == sorted(SettleReason)


def test_operating_says_of_every_reason_what_to_do() -> None:
    text = section("operating.md", "Why a rollout was not sealed")
    assert [reason for reason in SettleReason if f"`{reason}`" not in text] == []
