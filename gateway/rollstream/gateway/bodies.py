"""A body's bytes as what they say, or the problem with them. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from math import inf, isfinite
from types import UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import inspect

from rollstream.gateway.models import Body
from rollstream.gateway.problems import Kind, Refused, refused, shortened, shown

BodyT = TypeVar("BodyT", bound=Body)
# Objects and lists of a body, outside of its texts: up to 65,536, or one for each 64 bytes where
# these are more. A text of two bytes, {}, is read into 64 to 250 in memory, which Python's garbage
# collector looks at again and again; 1,024 steps need a few thousand.
CONTAINERS_MAX = 65_536
_BYTES_EACH = 64
_OTHERS = bytes(set(range(256)) - set(b'"[{'))
_DIGITS_MAX = 4_300  # Python reads no number of more.


def read(raw: bytes | bytearray, model: type[BodyT]) -> BodyT:
    """The body, once it was checked. Meanwhile it takes up to 25 times its bytes.

    Raises:
        Refused: it is no JSON, has more objects and lists than it may, or names the first field
            that breaks a rule.
    """
    most = max(CONTAINERS_MAX, len(raw) // _BYTES_EACH)
    if _may_have_more(raw, most):
        raise refused(
            Kind.TOO_LARGE,
            f"the body has more than {most} objects and lists",
            "send fewer steps a call, or what metadata has so many of as a text",
            "the body",
            f"more than {most} objects and lists",
        )
    try:
        body: BodyT = _decoder(model).decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _problem(raw, model) from None
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


class _NoNumber(str):
    """``NaN`` or ``Infinity``, as Python's ``json.dumps`` writes them."""


class _Wrong(NamedTuple):
    """The first value that breaks a rule: where it is, what is wrong, and what to give there."""

    field: str
    value: Any
    remedy: str
    is_missing: bool = False


def _problem(raw: bytes | bytearray, model: type[Body]) -> Refused:
    """The problem of a body that was not taken: the text is read once more, without its model."""
    try:
        whole = _loaded(raw.decode())
    except RecursionError:
        return _nested()
    except ValueError as error:
        return refused(Kind.NOT_JSON, f"the body is no JSON: {error}", "send JSON in UTF-8")
    wrong = _first_wrong(whole, model, "")
    if wrong is None:
        remedy = "give each name once, and texts of whole characters, as /openapi.json has them"
        return refused(Kind.NOT_JSON, "the body is no JSON that has one meaning", remedy)
    field = shortened(wrong.field) or "the body"
    if wrong.is_missing:
        return refused(Kind.INVALID, f"{field} is missing", wrong.remedy, field)
    if isinstance(wrong.value, _NoNumber):
        return refused(
            Kind.NOT_JSON,
            f"the body is no JSON: {field} is {wrong.value}",
            "JSON has no NaN and no Infinity: send finite numbers, or null for a field that may be "
            "null",
            field,
            str(wrong.value),
        )
    is_large = isinstance(wrong.value, float) and not isfinite(wrong.value)
    value = "a number that is too large" if is_large else shown(wrong.value)
    return refused(Kind.INVALID, f"{field} is {value}", wrong.remedy, field, value)


def _loaded(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_NoNumber)
    except json.JSONDecodeError:
        raise
    except ValueError:  # A number has too many digits for Python.
        return json.loads(text, parse_constant=_NoNumber, parse_int=_whole)


def _whole(text: str) -> int | float:
    return int(text) if len(text) < _DIGITS_MAX else inf


def _first_wrong(value: Any, kind: Any, path: str) -> _Wrong | None:
    """The first value in it that is not of this type; None: all of it is."""
    for one in _alternatives(kind):
        found = None
        if one is Any:
            return _no_json(value, path)
        if isinstance(value, list) and get_origin(one) is list:
            found = _wrong_of_list(value, get_args(one)[0], path)
        elif isinstance(value, dict) and get_origin(one) is dict:
            each = ((f"{path}.{name}", inner, get_args(one)[1]) for name, inner in value.items())
            found = _first_of(each)
        elif isinstance(value, dict) and issubclass(one, msgspec.Struct):
            found = _wrong_of_object(value, one, path)
        if found is not None:
            return found
    return None if _fits(value, kind) else _Wrong(path, value, f"give {_wanted(kind)}")


def _wrong_of_object(value: Mapping[str, Any], kind: type, path: str) -> _Wrong | None:
    start = f"{path}." if path else ""
    fields = {one.encode_name: one for one in msgspec.structs.fields(kind)}
    for name, inner in value.items():
        if name not in fields:
            remedy = f"leave it out, or correct its name: {', '.join(fields)}"
            return _Wrong(f"{start}{name}", inner, remedy)
        if found := _first_wrong(inner, fields[name].type, f"{start}{name}"):
            return found
    for name, one in fields.items():
        if one.required and name not in value:
            return _Wrong(f"{start}{name}", None, f"give {_wanted(one.type)}", is_missing=True)
    return None


def _first_of(each: Iterator[tuple[str, Any, Any]]) -> _Wrong | None:
    found = (_first_wrong(value, kind, path) for path, value, kind in each)
    return next((wrong for wrong in found if wrong is not None), None)


def _wrong_of_list(value: list[Any], kind: Any, path: str) -> _Wrong | None:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _first_of((f"{path}[{at}]", inner, kind) for at, inner in enumerate(value))
    if _fits(value, list[kind]):
        return None
    low, high = 0, len(value)
    while high - low > 1:  # Each pass over a half of it is one in C.
        middle = (low + high) // 2
        if _fits(value[low:middle], list[kind]):
            low = middle
        else:
            high = middle
    return _first_wrong(value[low], kind, f"{path}[{low}]")


def _no_json(value: Any, path: str) -> _Wrong | None:
    """A number in it that no JSON has, or no reader of it."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        steps = "[{}]" if isinstance(value, list) else ".{}"
        return _first_of((f"{path}{steps.format(at)}", inner, Any) for at, inner in pairs)
    is_odd = isinstance(value, _NoNumber) or (isinstance(value, float) and not isfinite(value))
    return _Wrong(path, value, "give numbers that fit 64 bits") if is_odd else None


def _alternatives(kind: Any) -> list[Any]:
    """The types of which a value has to be of one."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _alternatives(get_args(kind)[0])
    if origin in (Union, UnionType):
        return [one for inner in get_args(kind) for one in _alternatives(inner)]
    return [kind]


def _fits(value: Any, kind: Any) -> bool:
    try:
        if isinstance(value, str):
            value.encode()  # Half of a surrogate pair is no character.
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, UnicodeError, OverflowError):
        return False
    return True


def _wanted(kind: Any) -> str:
    """What a value of this type is, in words."""
    return _said(inspect.type_info(kind))


def _said(kind: inspect.Type, many: str = "") -> str:
    """Args:
    many: ``s`` of several of them.
    """
    a = "" if many else "a "
    match kind:
        case inspect.Metadata():
            return _said(kind.type, many)
        case inspect.IntType():
            return f"{a}whole number{many} from {kind.ge} to {kind.le}, without quotes and .0"
        case inspect.FloatType():
            limits = "" if kind.ge is None else f" from {kind.ge:.8g} to {kind.le:.8g}"
            return f"{a}finite number{many}{limits}, without quotes"
        case inspect.StrType():
            least = f"{kind.min_length} to" if kind.min_length else "at most"
            return f"{a}text{many} of {least} {kind.max_length} characters"
        case inspect.BytesType():
            return "base64 (RFC 4648, with padding) of each value's bytes, the lowest first"
        case inspect.LiteralType():
            return " or ".join(map(json.dumps, kind.values))
        case inspect.ListType():
            count = f"{kind.min_length or 0} to {kind.max_length} " if kind.max_length else ""
            return f"{a}list{many} of {count}{_said(kind.item_type, 's')}"
        case inspect.UnionType():
            return ", or ".join(_said(one, many) for one in kind.types)
        case inspect.StructType():
            names = ", ".join(f'"{one.encode_name}": …' for one in kind.fields if one.required)
            return f"object{many}" if many else f"an object: {{{names}}}"
        case inspect.BoolType():
            return "true or false, without quotes"
        case inspect.NoneType():
            return "null"
        case _:
            return "an object"


def _nested() -> Refused:
    remedy = "send it flatter, metadata as a text for example"
    return refused(Kind.NOT_JSON, "the body has too many objects or lists in each other", remedy)
