"""Messages for wrong settings: the key, its value, what is wrong, what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from types import UnionType
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from rollstream.runtime.config.sections import RollstreamConfig

_KINDS = {  # By pydantic's type of error, without its "_type" or "_parsing".
    "string": "a text in quotes",
    "int": "a whole number",
    "int_from_float": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "tuple": "a list in brackets",
    "dict": "a section",
    "model": "a section",
}
_ELSEWHERE = {"max_queue_size": "capacity_groups"}  # Other systems' keys that no key looks like.
_SECRET = ("gateway", "tokens")  # Its values are shown to nobody.
_EXAMPLES = {  # For keys without a default.
    "kafka.bootstrap": 'bootstrap = "localhost:9092"',
    "store.root": 'root = "file:///data/run-17"',
    "samplers.environments": 'environments = ["math"]',
    "gateway.tokens.math": 'math = ["A-LONG-RANDOM-TOKEN"]',
    "samplers.ready_packs.schedule": "[samplers.NAME.ready_packs.schedule] with b_ratio = 0.5",
    "samplers.ready_packs.schedule.b_ratio": "b_ratio = 0.5, the share of steps on ready packs",
    "samplers.ready_packs.pack_length": "pack_length = 8192",
    "kafka": '[kafka] with bootstrap = "localhost:9092"',
    "store": '[store] with root = "file:///data/run-17"',
    "environments": "[environments.math]",
}


def explain(problem: ErrorDetails, variables: Mapping[tuple[str, ...], str]) -> str:
    """The message, in one line.

    Args:
        problem: pydantic's.
        variables: environment variables by the path of the key that each one sets.
    """
    where = tuple(str(part) for part in problem["loc"])
    key = ".".join(where)
    if problem["type"] == "value_error":
        message = str(problem["ctx"]["error"])
        return f"{key}: {message}" if key else message
    if problem["type"] == "missing":
        return f"{key} is missing; write {_example(where)}"
    secret = where[:2] == _SECRET
    given = f"{key} = {'(not shown)' if secret else _shown(problem['input'])}"
    if where in variables:
        given = f"{given} (from {variables[where]})"
    if problem["type"] == "extra_forbidden":
        return f"{given}: there is no such key; {_instead(where)}"
    example = _example(where)
    return f"{given}: {_wrong(problem)}{f'; for example {example}' if example else ''}"


def _wrong(problem: ErrorDetails) -> str:
    kind = problem["type"].removesuffix("_type").removesuffix("_parsing")
    if kind in _KINDS:
        return f"must be {_KINDS[kind]}"
    if problem["type"] in ("too_short", "string_too_short"):
        return "must not be empty"
    return problem["msg"].replace("Input should be", "must be")


def _instead(where: tuple[str, ...]) -> str:
    model = _model_at(where[:-1])
    known = list(model.model_fields) if model else []
    key = where[-1].lower()
    close = [one for one in known if one == _ELSEWHERE.get(key)]
    close = close or get_close_matches(key, known, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"remove it, or use one of: {', '.join(known)}"


def _example(where: tuple[str, ...]) -> str:
    named = where[0] in ("environments", "samplers") and len(where) > 2
    without_names = ".".join((where[0], *where[2:]) if named else where)
    if without_names in _EXAMPLES:
        return _EXAMPLES[without_names]
    model = _model_at(where[:-1])
    field = model.model_fields.get(where[-1]) if model else None
    if field is None or field.is_required():
        return ""
    default = field.get_default(call_default_factory=True)
    return "" if default is None else f"{where[-1]} = {_shown(default)}"


def _model_at(where: tuple[str, ...]) -> type[BaseModel] | None:
    """The model of the section at a path of keys; None where the path leads into a value."""
    kind: Any = RollstreamConfig
    for part in where:
        if get_origin(kind) is dict:
            kind = get_args(kind)[-1]
        else:
            field = getattr(kind, "model_fields", {}).get(part)
            kind = field.annotation if field else None
            if get_origin(kind) is UnionType:  # A section that may be left out.
                kind = next(one for one in get_args(kind) if one is not type(None))
    return kind if hasattr(kind, "model_fields") else None


def _shown(value: Any) -> str:
    """The value as TOML, near enough to be copied."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return repr(value)
