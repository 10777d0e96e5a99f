"""What ``rollstream.sampler`` shows to completion and ``help``."""

from __future__ import annotations

import pytest

import rollstream.sampler


def test_public_names_are_shown_and_no_others() -> None:
    assert dir(rollstream.sampler) == sorted(rollstream.sampler.__all__)


def test_without_ray_names_that_need_it_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollstream.sampler, "find_spec", lambda name: None)
    hidden = set(rollstream.sampler.__all__) - set(dir(rollstream.sampler))
    assert {name for name in hidden if not name.startswith("Async")} == {"SamplerClient"}
