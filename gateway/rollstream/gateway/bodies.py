"""A body's bytes as what they say, or the problem with them. Pure."""

from __future__ import annotations

import re
from functools import cache
from typing import TypeVar

import msgspec

from rollstream.gateway.models import Body
from rollstream.gateway.problems import Kind, Refused, shortened

BodyT = TypeVar("BodyT", bound=Body)
# Objects and lists of a body, outside of its texts: up to 65,536, or one for each 64 bytes where
# these are more. A text of two bytes, {}, is read into 64 to 250 in memory, which Python's garbage
# collector looks at again and again; 1,024 steps need a few thousand.
CONTAINERS_MAX = 65_536
_BYTES_EACH = 64
_OTHERS = bytes(set(range(256)) - set(b'"[{'))
# What msgspec says of a body: the rule that it breaks, and where.
_SAYS = re.compile(r"(?P<rule>.*?)(?: - at `\$(?P<path>[^`]*)`)?", re.DOTALL)
_OF_NAMES = re.compile(r"Object (?P<how>missing|contains)[^`]*`(?P<name>.*)`", re.DOTALL)
_PART = re.compile(r"\.([^.\[]+)|\[(\d+)\]")  # Of a path: a name, or an index.


def read(raw: bytes | bytearray, model: type[BodyT]) -> BodyT:
    """The body, once it was checked. Meanwhile it takes up to 25 times its bytes.

    Raises:
        Refused: it is no JSON, has more objects and lists than it may, or names the first field
            that breaks a rule.
    """
    most = max(CONTAINERS_MAX, len(raw) // _BYTES_EACH)
    if _may_have_more(raw, most):
        raise Refused(
            Kind.TOO_LARGE,
            f"the body has more than {most} objects and lists",
            "send fewer steps a call, or what metadata has so many of as a text",
            "the body",
        )
    try:
        body: BodyT = _decoder(model).decode(raw)
    except msgspec.ValidationError as wrong:
        raise _wrong_value(raw, str(wrong)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        remedy = "send JSON in UTF-8; it has no NaN and no Infinity, send null where it may be"
        raise Refused(Kind.NOT_JSON, f"the body is no JSON: {error}", remedy) from None
    except RecursionError:
        finding = "the body has too many objects or lists in each other"
        remedy = "send it flatter, metadata as a text for example"
        raise Refused(Kind.NOT_JSON, finding, remedy) from None
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


def _wrong_value(raw: bytes | bytearray, says: str) -> Refused:
    """The problem of a body that breaks a rule of its model."""
    found = _SAYS.fullmatch(says)
    assert found is not None, says
    rule, path, named = found["rule"], found["path"] or "", _OF_NAMES.fullmatch(found["rule"])
    remedy = shortened(rule).replace("Expected", "give", 1)
    if named is not None:
        path = f"{path}.{named['name']}"
        remedy = "leave it out, or correct its name: /docs has all of them"
    elif not rule.startswith("Expected"):
        remedy = f"give what /docs has for it: {remedy}"
    field, value = shortened(path.removeprefix(".")) or "the body", _shown_at(raw, path)
    if named is not None and named["how"] == "missing":
        return Refused(Kind.INVALID, f"{field} is missing", "give it, as /docs has it", field)
    return Refused(Kind.INVALID, f"{field} is {value or 'wrong'}", remedy, field, value)


def _shown_at(raw: bytes | bytearray, path: str) -> str | None:
    """The JSON at this path; None: there is none, or the path does not say where."""
    try:
        value = msgspec.json.decode(raw)
        for name, index in _PART.findall(path):
            value = value[name] if name else value[int(index)]
        return shortened(msgspec.json.encode(value).decode())
    except (msgspec.DecodeError, RecursionError, LookupError, TypeError, ValueError):
        return None
