"""The page of all configuration keys, made of the models of the sections.

``python -m harness.configuration_page`` writes it; a test compares the page with what this makes.
"""

from __future__ import annotations

import json
import types
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from harness.source_tree import ROOT
from rollstream.runtime.config import sections
from rollstream.runtime.config.gateway import GatewayConfig
from rollstream.runtime.config.metrics import MetricsConfig
from rollstream.runtime.config.ready_packs import ChannelBConfig, ReadyPacksConfig, ScheduleConfig
from rollstream.runtime.config.store import StoreConfig

PAGE = ROOT / "docs" / "reference" / "configuration.md"
HEAD = """# Configuration

All commands and samplers read `rollstream.toml`. It is checked whole at the start. Unknown keys,
wrong types and settings that could never make progress are refused, and the message says what to
write instead. Producers read no file.

```toml
[kafka]
bootstrap = "localhost:9092"
namespace = "experiment-7"

[store]
root = "file:///data/experiment-7"

[environments.math]
target_group_size = 8

[samplers.trainer-a]
environments = ["math"]
```

Environment variables override keys. `ROLLSTREAM_KAFKA__BOOTSTRAP=…` sets `kafka.bootstrap`. Join
sections and keys by two underscores, and write a dash in a name as an underscore. Write lists as in
TOML: `["math", "code"]`.

In the tables, **required** keys have no default. *Log time* is the time of the broker's records.
"""
SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("Top level", sections.RollstreamConfig),
    ("[kafka]", sections.KafkaConfig),
    ("[store]", StoreConfig),
    ("[sealers]", sections.SealersConfig),
    ("[environments.NAME]", sections.EnvironmentConfig),
    ("[samplers.NAME]", sections.SamplerConfig),
    ("[samplers.NAME.ready_packs]", ReadyPacksConfig),
    ("[samplers.NAME.ready_packs.schedule]", ScheduleConfig),
    ("[samplers.NAME.ready_packs.channel_b]", ChannelBConfig),
    ("[gateway]", GatewayConfig),
    ("[metrics]", MetricsConfig),
)
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_TYPES = {str: "text", int: "an integer", float: "a number"}


def page() -> str:
    """The page as it should be."""
    return "\n".join([HEAD, *(_section(title, model) for title, model in SECTIONS)])


def _section(title: str, model: type[BaseModel]) -> str:
    heading = title if title == "Top level" else f"`{title}`"
    lines = [f"## {heading}", ""]
    if title != "Top level":
        lines += [" ".join((model.__doc__ or "").split()), ""]
    lines += ["| key | default | meaning |", "|---|---|---|"]
    lines += [
        f"| `{name}` | {_default(name, field)} | {_meaning(field)} |"
        for name, field in model.model_fields.items()
        if not _is_table(field.annotation)
    ]
    return "\n".join([*lines, ""])


def _is_table(kind: Any) -> bool:
    """Whether it is a section of its own, or several by name."""
    arguments = [one for one in get_args(kind) if isinstance(one, type)]
    return any(issubclass(one, BaseModel) for one in (kind, *arguments) if isinstance(one, type))


def _type(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(_type(one) for one in arguments if one is not type(None))
    if origin is tuple and len(arguments) == 2 and arguments[1] is not Ellipsis:
        return "two numbers"
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    if origin is not None:  # Annotated: a number that is finite, say.
        return _type(arguments[0])
    return _TYPES[kind]


def _default(name: str, field: FieldInfo) -> str:
    """The default, and what else there may be, where that does not follow from it."""
    if field.is_required():
        return f"**required**: {_type(field.annotation)}"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None:
        return f"none; or {_type(field.annotation)}"
    if get_origin(field.annotation) is Literal:
        others = [f'`"{one}"`' for one in get_args(field.annotation) if one != value]
        return f'`"{value}"`; or {", ".join(others)}'
    if name.endswith("_bytes"):
        size, unit = next((size, unit) for size, unit in _UNITS if value % size == 0)
        return f"`{value:_}` ({value // size} {unit})"
    if isinstance(value, bool | str | tuple | dict):
        return f"`{json.dumps(value)}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value:_}`"


def _meaning(field: FieldInfo) -> str:
    return " ".join((field.description or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
