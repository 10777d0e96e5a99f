"""Errors as problem details (RFC 9457). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from pydantic_core import ErrorDetails

from rollstream.gateway.models import Problem
from rollstream.producers import (
    BrokerUnavailable,
    BufferFull,
    Contradiction,
    DeliveryFailed,
    InvalidRollout,
    NoPolicy,
    RolloutTooLarge,
    RunOver,
    SeveralLineages,
)
from rollstream.schemas.errors import RollstreamError

MEDIA_TYPE = "application/problem+json"
_CLOSE = {"Connection": "close"}
_SHOWN_CHARS_MAX = 200


class _Kind(NamedTuple):
    status: int
    uid: str
    title: str
    retry: bool = False  # Whether to come again.
    headers: Mapping[str, str] = MappingProxyType({})


class Kind(_Kind, Enum):
    """The kinds of problems."""

    NOT_JSON = 400, "not-json", "The body is not JSON"
    NOT_HTTP = 400, "not-http", "The bytes are not HTTP", False, _CLOSE
    CUT_OFF = 400, "cut-off", "The body ended before its end"
    QUERY = 400, "wrong-query", "The query parameters are wrong"
    NO_TOKEN = 401, "no-token", "The call needs a token", False, {"WWW-Authenticate": "Bearer"}
    FORBIDDEN = 403, "forbidden", "The token is another environment's"
    UNKNOWN = 404, "unknown-environment", "There is no such environment"
    NO_POLICY = 404, "no-policy", "No policy was published"
    RUN_OVER = 404, "run-over", "The run of the trainer is over"
    NO_PATH = 404, "unknown-path", "There is no such path"
    NO_METHOD = 405, "wrong-method", "The path takes another method"
    SLOW = 408, "slow-request", "The request did not come in time", True, _CLOSE
    CONTRADICTS = 409, "contradicts", "It contradicts what was submitted before"
    TOO_LARGE = 413, "too-large", "The request is too large"
    UNSUPPORTED = 415, "unsupported-media-type", "The body is of another media type"
    INVALID = 422, "invalid-request", "The request breaks a rule"
    FULL = 429, "full", "More at once than may be", True
    HEAD = 431, "headers-too-large", "The address and the headers are too large", False, _CLOSE
    DEFECT = 500, "defect", "A defect of the gateway"
    BUSY = 503, "busy", "Too much at once, from all callers", True
    DRAINING = 503, "draining", "This gateway ends", True
    UNAVAILABLE = 503, "broker-unavailable", "The broker did not take it", True
    LATE = 504, "no-answer-in-time", "The broker did not answer in time", True


class Refused(RollstreamError):
    """A request that is answered with a problem.

    Args:
        finding: what is wrong, and the value.
        remedy: what to do.
        field: where, if one value is wrong.
        value: what was there.

    Attributes:
        kind: of the problem, as its ``type`` ends.
        problem: the answer.
        headers: of the answer.
        retry: whether it says when to send the request again.
    """

    def __init__(
        self,
        kind: Kind,
        finding: str,
        remedy: str,
        field: str | None = None,
        value: str | None = None,
    ) -> None:
        self.kind = kind.uid
        self.problem = Problem(
            type=f"urn:rollstream:problem:{kind.uid}",
            title=kind.title,
            status=kind.status,
            detail=f"{finding}; {remedy}",
            field=field,
            value=value,
            remedy=remedy,
        )
        self.headers = {**kind.headers}
        self.retry = kind.retry
        super().__init__(self.problem.detail)

    def closing(self) -> Self:
        """The same, and its connection ends with the answer."""
        self.headers.update(_CLOSE)
        return self


def explained(error: RollstreamError) -> Refused:
    """The problem of an error that the writer raised."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, InvalidRollout):
        return wrong_value(error)
    if isinstance(error, SeveralLineages):
        return Refused(Kind.INVALID, str(error), "give ?lineage= with one of them", "lineage")
    kind, remedy = next(found for of, found in _EXPLAINED if isinstance(error, of))
    return Refused(kind, str(error), remedy)


_HARMLESS = "send it again, a retry is harmless"
_EXPLAINED: tuple[tuple[type[RollstreamError], tuple[Kind, str]], ...] = (
    (RunOver, (Kind.RUN_OVER, "end, or ask again once a trainer has extended the run")),
    (NoPolicy, (Kind.NO_POLICY, "ask again once its trainer has published one")),
    (BufferFull, (Kind.FULL, "try again later, none of this call was taken")),
    (BrokerUnavailable, (Kind.UNAVAILABLE, _HARMLESS)),
    (DeliveryFailed, (Kind.UNAVAILABLE, _HARMLESS)),
    (RollstreamError, (Kind.UNAVAILABLE, "correct its cause, and send it again")),
)


def wrong_value(error: InvalidRollout) -> Refused:
    """The problem of a value that the writer refused."""
    kind = Kind.TOO_LARGE if isinstance(error, RolloutTooLarge) else Kind.INVALID
    kind = Kind.CONTRADICTS if isinstance(error, Contradiction) else kind
    at = "" if error.index is None else f"{error.of}[{error.index}]."
    field = f"{at}{error.field}"
    finding = f"{field} {error.finding}"
    value = None if error.value is None else shown(error.value)
    return Refused(kind, finding, error.remedy, shortened(field), value)


def not_routed(status: int, method: str, path: str, allowed: str | None) -> Refused:
    """The problem of a path or method that there is not.

    Args:
        allowed: the path's methods, where they are known.
    """
    kind = Kind.NO_METHOD if status == Kind.NO_METHOD.status else Kind.NO_PATH
    finding = f"there is no {shortened(method)} {shortened(path)}"
    found = Refused(kind, finding, "/docs lists what there is", "path", shown(path))
    found.headers |= {"Allow": allowed} if allowed else {}
    return found


def wrong_query(problem: ErrorDetails) -> Refused:
    """The problem of what stands behind the ``?``; of several, one."""
    name, value = shortened(str(problem["loc"][-1])), shown(problem["input"])
    is_unknown = problem["type"] == "extra_forbidden"
    remedy = "leave it out, or correct its name" if is_unknown else "give true or false"
    return Refused(Kind.QUERY, f"the query parameter {name!r} is {value}", remedy, name, value)


def shortened(text: str) -> str:
    """Its beginning."""
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"


def shown(value: Any) -> str:
    """The beginning of a value, which may be of any size."""
    if isinstance(value, dict):
        return f"an object of {len(value)}"
    if isinstance(value, str):
        value = value[: _SHOWN_CHARS_MAX + 1]
    elif value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    elif value in (inf, -inf):
        return "a number that is too large"
    elif hasattr(value, "__len__"):
        return f"a list of {len(value)}"
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of more than 4,300 digits.
        return "a number of more than 4,300 digits"
    return shortened(text)
