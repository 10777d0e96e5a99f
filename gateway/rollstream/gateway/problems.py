"""Errors as problem details (RFC 9457): the same texts as the SDK's typed errors. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic_core import ErrorDetails

from rollstream.gateway.models import Problem
from rollstream.producers.errors import DeliveryFailed, ProducerError, RolloutTooLarge
from rollstream.schemas.errors import InvalidRollout, RollstreamError
from rollstream.streams.errors import BrokerError, BrokerUnavailable, BufferFull

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1
_SHOWN_CHARS_MAX = 200
_SAID = re.compile(r"(?:(steps\[\d+\]): )?(\S+) ((?:is|has) .*?); (.*)", re.DOTALL)


class Refused(RollstreamError):
    """A request that is answered with a problem.

    Attributes:
        problem: the answer.
        headers: of the answer.
    """

    def __init__(self, problem: Problem, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.headers = dict(headers or {})


class _Kind(NamedTuple):
    status: int
    name: str
    title: str
    retry: bool = False


INVALID = _Kind(422, "invalid-request", "The request breaks a rule")
NOT_JSON = _Kind(400, "not-json", "The body is not JSON")
CUT_OFF = _Kind(400, "cut-off", "The body ended before its end")
UNSUPPORTED = _Kind(415, "unsupported-media-type", "The body is of another media type")
NO_TOKEN = _Kind(401, "no-token", "The call needs a token")
FORBIDDEN = _Kind(403, "forbidden", "The token is another environment's")
UNKNOWN = _Kind(404, "unknown-environment", "There is no such environment")
SLOW = _Kind(408, "slow-request", "The body did not come in time", retry=True)
TOO_LARGE = _Kind(413, "too-large", "The request is too large")
FULL = _Kind(429, "full", "More is on its way than may be", retry=True)
BUSY = _Kind(503, "busy", "Too many requests at once", retry=True)
DRAINING = _Kind(503, "draining", "This gateway ends", retry=True)
UNAVAILABLE = _Kind(503, "broker-unavailable", "The broker did not take it", retry=True)
LATE = _Kind(504, "no-answer-in-time", "The broker did not answer in time", retry=True)
KINDS = (
    *(NOT_JSON, NO_TOKEN, FORBIDDEN, UNKNOWN, SLOW, TOO_LARGE, UNSUPPORTED, INVALID),
    *(FULL, BUSY, DRAINING, UNAVAILABLE, LATE, CUT_OFF),
)


def refused(kind: _Kind, detail: str, **named: str) -> Refused:
    """A problem of this kind.

    Args:
        detail: what was wrong, the value, and what to do.
        named: ``field``, ``value`` and ``remedy``, where one value is wrong.
    """
    problem = Problem(
        type=f"urn:rollstream:problem:{kind.name}",
        title=kind.title,
        status=kind.status,
        detail=detail,
        **named,
    )
    headers = {"Retry-After": str(RETRY_AFTER_S)} if kind.retry else {}
    if kind is NO_TOKEN:
        headers["WWW-Authenticate"] = "Bearer"
    return Refused(problem, headers)


def explained(error: RollstreamError) -> Refused:
    """The problem of an error that the writer raised."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, InvalidRollout):
        kind = TOO_LARGE if isinstance(error, RolloutTooLarge) else INVALID
        return refused(kind, str(error), **_named(str(error)))
    if isinstance(error, BufferFull):
        return refused(FULL, f"{error}; try again later, none of this call was taken")
    if isinstance(error, BrokerUnavailable | DeliveryFailed):
        return refused(UNAVAILABLE, f"{error}; a retry of this call is harmless")
    assert isinstance(error, BrokerError | ProducerError), error
    return refused(UNAVAILABLE, str(error))


def _named(text: str) -> dict[str, str]:
    """Field, value and remedy of a producer's message, where it is about one field."""
    found = _SAID.fullmatch(text)
    if found is None:
        return {}
    at, field, value, remedy = found.groups()
    return {"field": f"{at}.{field}" if at else field, "value": value, "remedy": remedy}


def invalid(problem: ErrorDetails) -> Refused:
    """The problem of a body or query that pydantic refused; the first of what it found."""
    field = _path(problem["loc"])
    if problem["type"] == "json_invalid":
        return refused(NOT_JSON, f"{problem['msg']}; send JSON in UTF-8")
    if problem["type"] == "missing":
        remedy = "give it"
        return refused(INVALID, f"{field} is missing; {remedy}", field=field, remedy=remedy)
    value = shown(problem["input"])
    if problem["type"] == "extra_forbidden":
        remedy = "leave it out, or correct its name"
        detail = f"{field} is no field; {remedy}"
        return refused(INVALID, detail, field=field, value=value, remedy=remedy)
    remedy = problem["msg"].removeprefix("Input should be ")
    remedy = f"give {remedy}" if remedy != problem["msg"] else remedy
    detail = f"{field} is {value}; {remedy}"
    return refused(INVALID, detail, field=field, value=value, remedy=remedy)


def _path(where: tuple[int | str, ...]) -> str:
    """``steps[3].prompt_ids[7]``"""
    path = ""
    for part in where:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path or "the body"


def shown(value: Any) -> str:
    """The beginning of a value, which may be of any size."""
    if isinstance(value, list | dict):
        kind = "list" if isinstance(value, list) else "mapping"
        return f"a {kind} of {len(value)}"
    if isinstance(value, str):
        value = value[: _SHOWN_CHARS_MAX + 1]
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of more than 4,300 digits.
        return f"a {type(value).__name__} that is too long to be shown"
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"
