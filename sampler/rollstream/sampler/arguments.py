"""Checks of a caller's arguments: ``InvalidRequest`` names argument, value and remedy. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from os import PathLike, fspath
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.errors import InvalidRequest
from rollstream.schemas import rules
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.metadata import object_text

# Of a policy: each announcement to env workers has it again, and some hundred are remembered.
METADATA_BYTES_MAX = 64 * 1024
NO_METADATA: Mapping[str, Any] = MappingProxyType({})
_INT32 = np.iinfo(np.int32)
_GROUP_ID = re.compile(r"[0-9a-f]{32}")


def whole_number(name: str, value: Any) -> int:
    """As ``rules.whole_number``, and one that an event has room for."""
    try:
        found = rules.whole_number(name, value)
    except InvalidRollout as broken:
        raise InvalidRequest(str(broken)) from None
    if abs(found) > rules.LONG_MAX:
        about = f"{'-' * (found < 0)}2**{found.bit_length() - 1}"
        raise InvalidRequest(f"{name} is beyond {about}; give a number of at most 2**63 - 1")
    return found


def at_least(name: str, value: Any, lowest: int) -> int:
    """The value, which is a whole number no lower than that."""
    found = whole_number(name, value)
    if found < lowest:
        raise InvalidRequest(f"{name} is {found}; give {lowest} or more")
    return found


def token_id(name: str, value: Any) -> int:
    """The value, which is a whole number that int32, and so a token, has room for."""
    if value is None:
        raise InvalidRequest(
            f"{name} is None, as tokenizer.pad_token_id is where a tokenizer has none; give the id "
            "of any token, such as tokenizer.eos_token_id: padding is masked"
        )
    found = whole_number(name, value)
    if not 0 <= found <= _INT32.max:
        raise InvalidRequest(f"{name} is {found}; give the id of a token: 0 to {_INT32.max}")
    return found


def whole_numbers(name: str, values: Any) -> tuple[int, ...]:
    """Each as ``whole_number``."""
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        raise InvalidRequest(f"{name} is {values!r:.200}; give a sequence of whole numbers")
    return tuple([whole_number(f"a number in {name}", value) for value in values])


def array(values: Any) -> NDArray[Any]:
    """The values as NumPy has them; of objects, which is what no check takes, where their parts
    differ in length or some are masked."""
    if isinstance(values, np.ma.MaskedArray):
        return np.asarray(None)
    try:
        return np.asarray(values)
    except ValueError:
        return np.asarray(None)


def indices(name: str, values: Any, count: int, *, from_end: bool = False) -> NDArray[np.int64]:
    """The values, which are indices of ``count`` things; where ``from_end`` also negative ones,
    which count from the end."""
    found = array(values)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise InvalidRequest(f"{name} is {values!r:.200}; give a sequence of whole numbers")
    lowest = -count if from_end else 0
    for wrong in found[(found < lowest) | (found >= count)].tolist():
        raise InvalidRequest(f"{name} has {wrong}; there are {count}, which count from 0")
    at = found.astype(np.int64)
    return np.where(at < 0, at + count, at)


def marks(name: str, values: Any) -> tuple[bool, ...]:
    """The values, which are a boolean each."""
    found = np.asarray(values)
    if found.ndim != 1 or (found.dtype != np.bool_ and found.size):
        raise InvalidRequest(f"{name} is {values!r:.200}; give an array of bools, [n]")
    return tuple(found.astype(np.bool_).tolist())


def truth(name: str, value: Any) -> bool:
    """The value, which is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidRequest(f"{name} is {value!r:.200}; give True or False")
    return bool(value)


def group_ids(name: str, values: Any) -> tuple[str, ...]:
    """The values, which are ids of groups."""
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        raise InvalidRequest(f"{name} is {values!r:.200}; give a sequence of groups' ids")
    found = tuple([text(f"an id in {name}", value) for value in values])
    for one in found:
        if not _GROUP_ID.fullmatch(one):
            raise InvalidRequest(
                f"{name} has {one!r:.80}, which is no group's id; give 32 hexadecimal digits, as "
                "column group_id of the files has them"
            )
    return found


def reason_given(value: str) -> str:
    """Why something was done, for the record; ``InvalidRequest`` where that is empty."""
    found = text("reason", value)
    if not found:
        raise InvalidRequest("reason is empty; say why, for the record")
    return found


def text(name: str, value: Any) -> str:
    """The value, which is text that can be recorded."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} is {value!r:.200}; give a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{name} {value!r:.60} cannot be written as UTF-8: {error}") from None
    return str.__str__(value)  # A member of a str enumeration has another name for itself.


def version_given(value: Any) -> str | None:
    """The policy version that is asked for; None: none is."""
    return None if value is None else text("policy_version", value)


def as_text(value: Any) -> Any:
    """A path as its string; anything else as it is."""
    return fspath(value) if isinstance(value, PathLike) else value


def short_text(name: str, value: Any) -> str:
    """The value, which is text of a length that may be repeated in many records."""
    return _by_rule(rules.check_name, name, text(name, value))


def version(name: str, value: Any) -> str:
    """The value, which is text that names a policy, and so a folder."""
    return _by_rule(rules.check_version, name, text(name, value))


def json_object(name: str, value: Any) -> str:
    """A mapping, which is to be metadata, as JSON: equal for equal ones."""
    try:
        found = text(name, object_text(name, value, sort_keys=True))
    except InvalidRollout as broken:
        raise InvalidRequest(str(broken)) from None
    if len(found.encode()) > METADATA_BYTES_MAX:
        raise InvalidRequest(
            f"{name} has {len(found.encode())} bytes as JSON; give at most {METADATA_BYTES_MAX}, "
            "and put what is longer where workers can read it"
        )
    return found


def texts(name: str, values: Any) -> tuple[str, ...]:
    """Each as ``text``."""
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        raise InvalidRequest(f"{name} is {values!r:.200}; give a sequence of strings")
    return tuple([text(f"a string in {name}", value) for value in values])


def number(name: str, value: Any) -> float:
    """The value, which is a finite number."""
    if not _is_number(value):
        raise InvalidRequest(f"{name} is {value!r:.200}; give a finite number")
    return float(value)


def seconds(name: str, value: Any) -> float:
    """The value, which is a finite number that is not negative."""
    if not _is_number(value) or value < 0:
        raise InvalidRequest(f"{name} is {value!r:.200}; give a number of seconds, 0 or more")
    return float(value)


def shares(name: str, value: Any) -> dict[str, float]:
    """The value, which maps environments to numbers of 0 or more that are not all 0."""
    if not isinstance(value, Mapping):
        raise InvalidRequest(
            f"{name} is {value!r:.200}; give a mapping of environments to shares, for example "
            "{'math': 0.7, 'code': 0.3}, or None"
        )
    found = {text(f"a name in {name}", key): share for key, share in value.items()}
    if not all(_is_number(one) and one >= 0 for one in found.values()) or not any(found.values()):
        raise InvalidRequest(
            f"{name} {found!r:.200} gives no shares; use numbers of 0 or more, not all 0, or None"
        )
    return {key: float(share) for key, share in found.items()}


def _by_rule(check: Callable[[str, str], None], name: str, value: str) -> str:
    try:
        check(name, value)
    except InvalidRollout as broken:
        raise InvalidRequest(str(broken)) from None
    return value


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # Of an integer that float cannot hold.
        return False
