"""A body's bytes as what they say, or the problem with them. Pure."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, TypeVar

import msgspec

from rollstream.gateway import problems
from rollstream.gateway.models import Body
from rollstream.gateway.problems import Refused, refused, shown

BodyT = TypeVar("BodyT", bound=Body)
_AT = re.compile(r"(.*?)(?: - at `\$([.\w\[\]]*)`)?", re.DOTALL)
_UNKNOWN = "Object contains unknown field"
_NAMED = re.compile(r"Object (missing required|contains unknown) field `(.*)`", re.DOTALL)
_PART = re.compile(r"\.(\w+)|\[(\d+)\]")
_INDEX = re.compile(r"\[\d+\]")
_BYTE = re.compile(r"\(byte (\d+)\)$")
_NOT_FINITE = re.compile(b"NaN|Infinity")  # As Python's json.dumps writes them.
_FINITE = (
    "JSON has no NaN and no Infinity: send finite numbers, or null for a field that may be null"
)
_NOWHERE = object()
# Objects and lists of a body, outside of its texts: up to 65,536, or one for each 64 bytes where
# these are more. A text of two bytes, {}, is read into 64 to 250 in memory, which Python's garbage
# collector looks at again and again; 1,024 steps need a few thousand.
CONTAINERS_MAX = 65_536
_BYTES_EACH = 64
_OTHERS = bytes(set(range(256)) - set(b'"[{'))


def read(raw: bytes | bytearray, model: type[BodyT]) -> BodyT:
    """The body, once it was checked. Meanwhile it takes up to 25 times its bytes.

    Raises:
        Refused: it is no JSON, has more objects and lists than it may, or names the first field
            that breaks a rule.
    """
    most = max(CONTAINERS_MAX, len(raw) // _BYTES_EACH)
    if _may_have_more(raw, most):
        raise refused(
            problems.TOO_LARGE,
            f"the body has more than {most} objects and lists",
            "send fewer steps a call, or what metadata has so many of as a text",
            "the body",
            f"more than {most} objects and lists",
        )
    try:
        body: BodyT = _decoder(model).decode(raw)
    except msgspec.ValidationError as wrong:
        raise _invalid(raw, str(wrong), model) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise _no_json(raw, wrong, model) from None
    except RecursionError:
        raise _nested() from None
    return body


def _may_have_more(raw: bytes | bytearray, most: int) -> bool:
    """Whether it has more objects and lists than that, without one of them being made."""
    if raw.count(b"{") + raw.count(b"[") <= most:
        return False
    # Of escapes no quote is left, and then only what opens something, or begins or ends a text.
    marks = raw.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHERS)
    outside = marks.replace(b'""', b"").split(b'"')[::2]
    return sum(map(len, outside)) > most


@cache
def _decoder(model: type[BodyT]) -> msgspec.json.Decoder[BodyT]:
    return msgspec.json.Decoder(model)


def _invalid(raw: bytes | bytearray, said: str, model: type[Body]) -> Refused:
    """The problem of what msgspec said; the text that comes after may still be no JSON."""
    try:
        whole: Any = msgspec.json.decode(raw)
    except msgspec.ValidationError:  # A number that no 64 bits hold.
        whole = _NOWHERE
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        return _no_json(raw, wrong)
    except RecursionError:
        return _nested()
    finding, at = _finding(said, whole)
    field = at.removeprefix(".")
    if named := _NAMED.fullmatch(finding):
        inner = f"{field}.{named[2]}" if field else named[2]
        if named[1] == "missing required":
            return refused(problems.INVALID, f"{inner} is missing", _taken(model, inner), inner)
        value, field = _at(whole, at), problems.shortened(inner)
        value = value.get(named[2], _NOWHERE) if isinstance(value, dict) else _NOWHERE
        prefix = _INDEX.sub("[]", at.removeprefix("."))
        names = ", ".join(_fields(model, prefix))
        remedy = f"leave it out, or correct its name: {names}"
    else:
        value, remedy = _at(whole, at), _taken(model, field)
    text = "a number that is too large" if value is _NOWHERE else shown(value)
    return refused(
        problems.INVALID, f"{field or 'the body'} is {text}", remedy, field or "the body", text
    )


def _finding(said: str, whole: Any) -> tuple[str, str]:
    """What is wrong, and where. The name of an unknown field may read like a place."""
    found = _AT.fullmatch(said)
    assert found is not None, said
    finding, at = found[1], (found[2] or "").partition("[...]")[0]
    if said.startswith(_UNKNOWN) and whole is not _NOWHERE:
        named, there = _NAMED.fullmatch(finding), _at(whole, at)
        if not (named and isinstance(there, dict) and named[2] in there):
            return said, ""
    return finding, at


def _at(whole: Any, path: str) -> Any:
    """What stands at ``.steps[3].prompt_ids[7]``."""
    for name, index in _PART.findall(path):
        try:
            whole = whole[name] if name else whole[int(index)]
        except (KeyError, IndexError, TypeError):
            return _NOWHERE
    return whole


def _taken(model: type[Body], field: str) -> str:
    """What to give there."""
    path = _INDEX.sub("[]", field)
    return model.takes.get(path) or model.takes[path.removesuffix("[]")]


def _fields(model: type[Body], path: str) -> list[str]:
    start = f"{path}." if path else ""
    rest = [one.removeprefix(start) for one in model.takes if one and one.startswith(start)]
    return [one for one in rest if "." not in one and "[" not in one]


def _no_json(raw: bytes | bytearray, wrong: Exception, model: type[Body] | None = None) -> Refused:
    """The problem of a text that is no JSON; with a model, all before it was of the model."""
    at = _BYTE.search(str(wrong))
    found = at and _NOT_FINITE.match(raw, int(at[1]))
    if at and found:
        start, text = int(at[1]), found[0].decode()
        if raw[start - 1 : start] == b"-":
            start, text = start - 1, f"-{text}"
        field = _field_at(raw[:start], model) if model else None
        finding = f"the body is no JSON: {field or f'byte {start}'} is {text}"
        return refused(problems.NOT_JSON, finding, _FINITE, field, text)
    return refused(problems.NOT_JSON, f"the body is no JSON: {wrong}", "send JSON in UTF-8")


def _field_at(before: bytes | bytearray, model: type[Body]) -> str | None:
    """The field whose value begins behind these bytes; None where it cannot be
    told, as in ``metadata``."""
    try:
        _decoder(model).decode(before + b"true")  # What no number may be is refused with its place.
    except msgspec.ValidationError as wrong:
        found = _AT.fullmatch(str(wrong))
        at = found[2] if found else None
        return at.removeprefix(".") if at else None
    except msgspec.DecodeError:
        pass
    return None


def _nested() -> Refused:
    remedy = "send it flatter, metadata as a text for example"
    return refused(
        problems.NOT_JSON, "the body has too many objects or lists in each other", remedy
    )
