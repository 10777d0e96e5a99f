"""Refuses what is no sampler where one has to be given."""

from __future__ import annotations

from typing import Any

from rollstream.sampler.api.api import SamplerApi
from rollstream.sampler.errors import InvalidRequest


def a_sampler(value: Any) -> SamplerApi:
    """The value, which is a sampler; ``InvalidRequest`` where it is none."""
    if not isinstance(value, SamplerApi):
        raise InvalidRequest(
            f"sampler is {value!r:.200}; give a sampler, such as "
            "SamplerClient.attach('trainer-a', config='rollstream.toml') returns"
        )
    return value
