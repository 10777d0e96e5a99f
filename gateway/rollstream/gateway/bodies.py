"""A body's bytes as what they say, or the problem with them. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from math import inf
from types import UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import inspect

from rollstream.gateway.models import Body
from rollstream.gateway.problems import Kind, Refused, shortened, shown

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
        raise Refused(
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


class _NoNumber:
    """``NaN`` or ``Infinity``, as Python's ``json.dumps`` writes them."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class _Wrong(NamedTuple):
    """A value that breaks a rule: where it is, and what to give there."""

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
        return Refused(Kind.NOT_JSON, f"the body is no JSON: {error}", "send JSON in UTF-8")
    remedy = "give each name once, and texts of whole characters, as /openapi.json has them"
    for wrong in _wrongs(whole, model, ""):
        field, value = shortened(wrong.field) or "the body", shown(wrong.value)
        if wrong.is_missing:
            return Refused(Kind.INVALID, f"{field} is missing", wrong.remedy, field)
        if isinstance(wrong.value, _NoNumber):
            remedy = "JSON has no NaN and no Infinity: send finite numbers, or null where it may be"
            finding = f"the body is no JSON: {field} is {value}"
            return Refused(Kind.NOT_JSON, finding, remedy, field, value)
        return Refused(Kind.INVALID, f"{field} is {value}", wrong.remedy, field, value)
    return Refused(Kind.NOT_JSON, "the body is no JSON that has one meaning", remedy)


def _loaded(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_NoNumber)
    except json.JSONDecodeError:
        raise
    except ValueError:  # A number has too many digits for Python.
        return json.loads(text, parse_constant=_NoNumber, parse_int=_whole)


def _whole(text: str) -> int | float:
    return int(text) if len(text) < _DIGITS_MAX else inf


def _wrongs(value: Any, kind: Any, path: str) -> Iterator[_Wrong]:
    """The values in it that are not of this type, the innermost first."""
    for one in _alternatives(kind):
        if one is Any:
            yield from _no_json(value, path)
        elif isinstance(value, list) and get_origin(one) is list:
            (inner,) = get_args(one)
            for at in _suspects(value, inner):
                yield from _wrongs(value[at], inner, f"{path}[{at}]")
        elif isinstance(value, dict) and get_origin(one) is dict:
            for name, each in value.items():
                yield from _wrongs(each, get_args(one)[1], f"{path}.{name}")
        elif isinstance(value, dict) and _is_object(one):
            yield from _wrongs_of_object(value, one, f"{path}." if path else "")
    if not _fits(value, kind):
        yield _Wrong(path, value, f"give {_wanted(inspect.type_info(kind))}")


def _wrongs_of_object(value: Mapping[str, Any], kind: type, start: str) -> Iterator[_Wrong]:
    fields = {one.encode_name: one for one in msgspec.structs.fields(kind)}
    for name, each in value.items():
        if name in fields:
            yield from _wrongs(each, fields[name].type, f"{start}{name}")
        else:
            remedy = f"leave it out, or correct its name: {', '.join(fields)}"
            yield _Wrong(f"{start}{name}", each, remedy)
    for name, one in fields.items():
        if one.required and name not in value:
            remedy = f"give {_wanted(inspect.type_info(one.type))}"
            yield _Wrong(f"{start}{name}", None, remedy, is_missing=True)


def _suspects(value: list[Any], kind: Any) -> Iterable[int]:
    """The indexes of what may be wrong in a list; of many numbers or texts the first one."""
    low, high = 0, len(value)
    if _is_object(kind):
        return range(high)
    if _fits(value, list[kind]):
        return ()
    while high - low > 1:  # Each pass over a half of it is one in C.
        middle = (low + high) // 2
        if _fits(value[low:middle], list[kind]):
            low = middle
        else:
            high = middle
    return (low,)


def _is_object(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _no_json(value: Any, path: str) -> Iterator[_Wrong]:
    """Numbers in it that no JSON has, or no reader of it."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for at, each in pairs:
            yield from _no_json(each, f"{path}[{at}]" if isinstance(at, int) else f"{path}.{at}")
    elif isinstance(value, _NoNumber) or value in (inf, -inf):
        yield _Wrong(path, value, "give numbers that fit 64 bits")


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


def _wanted(kind: inspect.Type, many: str = "") -> str:
    """What a value of this type is, in words; ``many`` is the ``s`` of several."""
    a = "" if many else "a "
    match kind:
        case inspect.Metadata():
            return _wanted(kind.type, many)
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
            return f"{a}list{many} of {count}{_wanted(kind.item_type, 's')}"
        case inspect.UnionType():
            return ", or ".join(_wanted(one, many) for one in kind.types)
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
    return Refused(Kind.NOT_JSON, "the body has too many objects or lists in each other", remedy)
