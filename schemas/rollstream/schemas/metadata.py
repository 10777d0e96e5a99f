"""What a rollout's ``metadata`` may be: one rule for who publishes and who seals. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, NoReturn

import numpy as np

from rollstream.schemas.errors import InvalidRollout, shown

# Readers give up at some depth, Python's at one that depends on who called it.
DEPTH_MAX = 100
_SHALLOW_CHARS = 2 * DEPTH_MAX  # So short a text has no brackets for more, opened and closed.


class ObjectText(str):
    """What ``object_text`` made of a mapping; held, it takes its bytes and no objects."""

    __slots__ = ()


def object_text(name: str, value: Any, *, sort_keys: bool = False) -> str:
    """A mapping that is to be metadata, as JSON; ``InvalidRollout`` where it cannot be."""
    if value.__class__ is ObjectText:
        return str(value)
    if not isinstance(value, Mapping):
        raise InvalidRollout(name, value, "give a mapping")
    for key in value:
        if key.__class__ is not str:
            _check_key(name, key)
    if not value:
        return "{}"
    text = json_text(name, dict(value), sort_keys=sort_keys)
    if may_be_too_deep(text):
        check_metadata(name, text)
    return text


def json_text(name: str, value: Any, *, sort_keys: bool = False) -> str:
    """The value as JSON; ``InvalidRollout`` where JSON has no such values or keys."""
    try:
        text: str = (_to_sorted_json if sort_keys else _to_json)(value)
        # With one brace no object is within another.
        sound = text.count("{") <= (value.__class__ is dict) or _has_texts_as_keys(value)
    except (TypeError, ValueError, RecursionError) as error:
        if sort_keys and _is_writable(value):  # Keys of several types have no order.
            _check_keys(name, value)
        where, wrong = _unwritable(value)
        remedy = "give finite numbers, texts, lists, and dicts by text: float(x), x.tolist()"
        finding = f"is {shown(wrong)}, which JSON cannot hold"
        raise InvalidRollout(name + where, wrong, remedy, finding) from error
    if not sound:
        _check_keys(name, value)
    return text


def _has_texts_as_keys(value: Any) -> bool:
    """Whether every key within the value is a text: JSON makes texts of others, and may make the
    same one of two."""
    parts = value
    if isinstance(value, dict):
        for key in value:
            if key.__class__ is not str and not isinstance(key, str):
                return False
        parts = value.values()
    for one in parts:
        may_have = one.__class__ not in _WITHOUT_KEYS and isinstance(one, _WITH_PARTS)
        if may_have and not _has_texts_as_keys(one):
            return False
    return True


def _check_keys(name: str, value: Any) -> None:
    """Names the outermost key within the value that is no text."""
    level = [(name, value)]
    while level:
        inner: list[tuple[str, Any]] = []
        for where, part in level:
            if isinstance(part, dict):
                for key in part:
                    if key.__class__ is not str:
                        _check_key(where, key)
            parts = part.items() if isinstance(part, dict) else enumerate(part)
            inner += [
                (f"{where}[{at!r:.80}]", one) for at, one in parts if isinstance(one, _WITH_PARTS)
            ]
        level = inner


def _check_key(name: str, key: Any) -> None:
    if not isinstance(key, str):
        finding = f"has the key {shown(key)}"
        raise InvalidRollout(name, key, "JSON has strings as keys only", finding)


def _plain(value: Any) -> Any:
    """A number of NumPy, or of a library that follows it, as Python's. It is called for what JSON
    does not know alone."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        item = float(value) if isinstance(value, np.longdouble) else value.item()
        if not isinstance(item, _WITH_PARTS) or _has_texts_as_keys(item):  # NumPy may hold a dict.
            return item
    raise TypeError(f"{type(value).__name__} is no number of NumPy")


def _unwritable(value: Any) -> tuple[str, Any]:
    """Path and value of the innermost part that cannot be written. If the parts never end, those
    of the outermost."""
    found = [("", value)]
    while len(found) <= DEPTH_MAX:
        where, part = found[-1]
        parts: Any = part.items() if isinstance(part, dict) else ()
        parts = enumerate(part) if isinstance(part, list | tuple) else parts
        wrong = next(((key, one) for key, one in parts if not _is_writable(one)), None)
        if wrong is None:
            return where, part
        found.append((f"{where}[{wrong[0]!r:.80}]", wrong[1]))
    return found[1]


def _is_writable(value: Any) -> bool:
    try:
        _to_json(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def check_metadata(name: str, text: str) -> None:
    """The text is a JSON object that every reader takes: its numbers are finite, its texts can be
    written as UTF-8, and it nests at most ``DEPTH_MAX`` deep. Of a key that an object has twice
    the last counts."""
    try:
        found = _decoder.decode(text)
        if found.__class__ is not dict:
            raise ValueError("it is another value")
        if may_be_too_deep(text) and _depth(found) > DEPTH_MAX:
            raise ValueError(f"it nests {_depth(found)} deep, and {DEPTH_MAX} is the most")
        if "\\" in text:  # Half of a surrogate pair can be escaped, and is no character.
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        finding = f"{text[:40]!r} of {len(text)} characters is no JSON object: {error}"
        remedy = "give one, with finite numbers, or {}"
        raise InvalidRollout(name, text, remedy, finding) from None


def are_metadata(texts: Iterable[str]) -> bool:
    """Whether all of them surely are. Where not, ``check_metadata`` decides on each: a text with
    space around it, with escapes or with many brackets may be one too."""
    read = _decoder.raw_decode
    try:
        for text in texts:
            found, end = read(text)
            if found.__class__ is not dict or end != len(text) or "\\" in text:
                return False
            if end > _SHALLOW_CHARS and may_be_too_deep(text):
                return False
    except (ValueError, RecursionError):
        return False
    return True


def may_be_too_deep(text: str) -> bool:
    """Whether it has brackets for more than ``DEPTH_MAX``. Nobody has to read it for that."""
    return text.count("{") + text.count("[") > DEPTH_MAX


def _depth(value: Any) -> int:
    """How many arrays and objects are within one another."""
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        level = [
            inner for one in level for inner in (one.values() if isinstance(one, dict) else one)
        ]
    return depth


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        _refuse(text)
    return number


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text:.40} is no finite number")


_WITH_PARTS = (dict, list, tuple)
_WITHOUT_KEYS = frozenset((str, int, float, bool, type(None)))
_written: dict[str, Any] = {
    "ensure_ascii": False,
    "allow_nan": False,
    "separators": (",", ":"),
    "default": _plain,
}
_to_json = json.JSONEncoder(**_written).encode
_to_sorted_json = json.JSONEncoder(**_written, sort_keys=True).encode
_decoder = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)
