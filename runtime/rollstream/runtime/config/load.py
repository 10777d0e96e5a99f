"""Reads ``rollstream.toml`` and ``ROLLSTREAM_…`` variables; nothing else reads the environment.

``ROLLSTREAM_KAFKA__BOOTSTRAP=…`` overrides ``kafka.bootstrap``: sections and keys are joined by two
underscores, case does not matter.
"""

from __future__ import annotations

from pathlib import Path

from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.schemas.errors import RollstreamError


class ConfigError(RollstreamError, ValueError):
    """The configuration is wrong: names file, key, value, and what to write instead."""


def load_config(path: Path | str) -> RollstreamConfig:
    """The configuration, checked whole.

    Raises:
        ConfigError: the file is missing or no TOML, a key is unknown or of the wrong type, or the
            settings could never make progress.
    """
    raise NotImplementedError
