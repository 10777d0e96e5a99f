"""Reads ``rollstream.toml`` and ``ROLLSTREAM_…`` variables; no other file reads the environment.

``ROLLSTREAM_KAFKA__BOOTSTRAP=…`` overrides ``kafka.bootstrap``: sections and keys are joined by two
underscores, case does not matter, and a dash in a name is written as an underscore
(``ROLLSTREAM_SAMPLERS__TRAINER_A__SEED``). Lists are written as in TOML: ``["math", "code"]``.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rollstream.runtime.config.explain import explain
from rollstream.runtime.config.section import VariableText
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.schemas.errors import RollstreamError

PREFIX = "ROLLSTREAM_"
BETWEEN = "__"  # A variable without it names no key and is ignored.


class ConfigError(RollstreamError, ValueError):
    """The configuration is wrong. The message names file, key and value, and says what to write
    instead.
    """


def load_config(path: Path | str, *, environ: Mapping[str, str] | None = None) -> RollstreamConfig:
    """Reads and checks the configuration.

    Args:
        path: of the TOML file.
        environ: variables that may override keys; None: those of this process.

    Raises:
        ConfigError: the file is missing or is not TOML; a key is unknown or has a wrong type; or
            nothing could make progress with the settings. The message lists every problem.
    """
    content = _read(Path(path))
    variables: dict[tuple[str, ...], str] = {}
    for name, text in sorted((os.environ if environ is None else environ).items()):
        if name.upper().startswith(PREFIX) and BETWEEN in name[len(PREFIX) :]:
            keys = name[len(PREFIX) :].split(BETWEEN)
            variables[_override(content, name, keys, text)] = name
    try:
        return RollstreamConfig.model_validate(content)
    except ValidationError as error:
        problems = [explain(problem, variables) for problem in error.errors()]
        raise ConfigError("\n".join(f"{path}: {problem}" for problem in problems)) from None


def configured(config: RollstreamConfig | Path | str) -> RollstreamConfig:
    """Returns the configuration, which is loaded where its path was passed."""
    if isinstance(config, RollstreamConfig):
        return config
    if not isinstance(config, Path | str):
        raise ConfigError(
            f"config is {config!r:.200}; give the path of a TOML file, or what "
            "RollstreamConfig.model_validate makes of a mapping"
        )
    return load_config(config)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: there is no such file; write one with the sections [kafka], [store] and "
            "[environments.<name>], or name another with --config"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _override(
    content: dict[str, Any], variable: str, keys: list[str], text: str
) -> tuple[str, ...]:
    """Sets the key that the variable names, and returns that key's path."""
    section: Any = content
    path = []
    for key in keys[:-1]:
        path.append(_spelled(section, key))
        section = section.setdefault(path[-1], {})
        if not isinstance(section, dict):
            raise ConfigError(
                f"{variable}={text!r}: {'.'.join(path)} is {section!r}, no section; correct the "
                "variable's name"
            )
    path.append(_spelled(section, keys[-1]))
    section[path[-1]] = _parsed(text)
    return tuple(path)


def _spelled(section: Mapping[str, Any], key: str) -> str:
    """The key as the file spells it; in lower case where the file lacks it."""
    wanted = key.lower()
    alike = (known for known in section if known.lower().replace("-", "_") == wanted)
    return next(alike, wanted)


def _parsed(text: str) -> Any:
    if text.startswith(("[", "{")):
        try:
            return tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            pass  # The check of its type then reports it, with the variable's name.
    return VariableText(text)
