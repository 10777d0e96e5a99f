"""Errors as problem details (RFC 9457). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from rollstream.gateway.models import Problem
from rollstream.producers import Step
from rollstream.producers.errors import (
    Contradiction,
    DeliveryFailed,
    NoPolicy,
    ProducerError,
    RolloutTooLarge,
    SeveralLineages,
)
from rollstream.schemas.errors import InvalidRollout, RollstreamError
from rollstream.streams.errors import BrokerError, BrokerUnavailable, BufferFull

MEDIA_TYPE = "application/problem+json"
_CLOSE = {"Connection": "close"}
_LISTED = "/docs lists what there is"
_SHOWN_CHARS_MAX = 200
_SAID = re.compile(
    r"(?:steps\[(\d+)\]: )?((\w+)(?:\.\w+)?(?:\[(\d+)\])?) (?:is|has) (.*?); (.*)", re.DOTALL
)


class Refused(RollstreamError):
    """A request that is answered with a problem.

    Attributes:
        problem: the answer.
        headers: of the answer.
        retry: whether it says when to send the request again.
    """

    def __init__(
        self, problem: Problem, headers: Mapping[str, str] | None = None, *, retry: bool = False
    ) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.headers = dict(headers or {})
        self.retry = retry

    def closing(self) -> Self:
        """The same, and its connection ends with the answer."""
        self.headers.update(_CLOSE)
        return self


class Kind(NamedTuple):
    """A kind of problem."""

    status: int
    name: str
    title: str
    retry: bool = False
    headers: Mapping[str, str] = MappingProxyType({})


INVALID = Kind(422, "invalid-request", "The request breaks a rule")
CONTRADICTS = Kind(409, "contradicts", "It contradicts what was submitted before")
NOT_JSON = Kind(400, "not-json", "The body is not JSON")
NO_HTTP = Kind(400, "not-http", "The bytes are not HTTP", headers=_CLOSE)
CUT_OFF = Kind(400, "cut-off", "The body ended before its end")
UNSUPPORTED = Kind(415, "unsupported-media-type", "The body is of another media type")
NO_TOKEN = Kind(401, "no-token", "The call needs a token", headers={"WWW-Authenticate": "Bearer"})
FORBIDDEN = Kind(403, "forbidden", "The token is another environment's")
UNKNOWN = Kind(404, "unknown-environment", "There is no such environment")
NO_PATH = Kind(404, "unknown-path", "There is no such path")
NO_METHOD = Kind(405, "wrong-method", "The path takes another method")
NO_POLICY = Kind(404, "no-policy", "No policy was published")
SLOW = Kind(408, "slow-request", "The request did not come in time", retry=True, headers=_CLOSE)
TOO_LARGE = Kind(413, "too-large", "The request is too large")
FULL = Kind(429, "full", "More at once than may be", retry=True)
BUSY = Kind(503, "busy", "Too much at once, from all callers", retry=True)
DRAINING = Kind(503, "draining", "This gateway ends", retry=True)
UNAVAILABLE = Kind(503, "broker-unavailable", "The broker did not take it", retry=True)
DEFECT = Kind(500, "defect", "A defect of the gateway")
LATE = Kind(504, "no-answer-in-time", "The broker did not answer in time", retry=True)
KINDS = (
    *(
        NOT_JSON,
        NO_TOKEN,
        FORBIDDEN,
        UNKNOWN,
        NO_POLICY,
        NO_PATH,
        NO_METHOD,
        SLOW,
        TOO_LARGE,
        UNSUPPORTED,
    ),
    *(INVALID, CONTRADICTS, FULL, BUSY, DRAINING, UNAVAILABLE, DEFECT, LATE, CUT_OFF),
)


def refused(
    kind: Kind, finding: str, remedy: str, field: str | None = None, value: str | None = None
) -> Refused:
    """A problem of this kind.

    Args:
        finding: what was wrong, and the value.
        remedy: what to do.
        field: where, if one value is wrong.
        value: what was there.
    """
    problem = Problem(
        type=f"urn:rollstream:problem:{kind.name}",
        title=kind.title,
        status=kind.status,
        detail=f"{finding}; {remedy}",
        field=field,
        value=value,
        remedy=remedy,
    )
    return Refused(problem, kind.headers, retry=kind.retry)


def explained(error: RollstreamError) -> Refused:
    """The problem of an error that the writer raised."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, InvalidRollout):
        return wrong_values(error, {})
    if isinstance(error, SeveralLineages):
        return refused(INVALID, str(error), "give ?lineage= with one of them", "lineage")
    if isinstance(error, NoPolicy):
        return refused(NO_POLICY, str(error), "ask again once its trainer has published one")
    if isinstance(error, BufferFull):
        return refused(FULL, str(error), "try again later, none of this call was taken")
    if isinstance(error, BrokerUnavailable | DeliveryFailed):
        return refused(UNAVAILABLE, str(error), "send it again, a retry is harmless")
    assert isinstance(error, BrokerError | ProducerError), error
    finding, remedy = _parts(str(error))
    return refused(UNAVAILABLE, finding, remedy)


def wrong_values(error: InvalidRollout, given: Sequence[Step] | Mapping[str, Any]) -> Refused:
    """The problem of values that the writer refused.

    Args:
        given: the steps of the call, or its values by their names.
    """
    kind = TOO_LARGE if isinstance(error, RolloutTooLarge) else INVALID
    kind = CONTRADICTS if isinstance(error, Contradiction) else kind
    said = _SAID.fullmatch(str(error))
    if said is None:
        finding, remedy = _parts(str(error))
        return refused(kind, finding, remedy)
    step, field, name, at, finding, remedy = said.groups()
    value = shortened(finding)
    values: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    if step is not None and isinstance(given, Sequence) and int(step) < len(given):
        values = given[int(step)]._asdict()
    if name in values and "." not in field:
        value = shown(values[name] if at is None else values[name][int(at)].item())
    field = field if step is None else f"steps[{step}].{field}"
    return refused(kind, str(error).removesuffix(f"; {remedy}"), remedy, field, value)


def _parts(text: str) -> tuple[str, str]:
    """What was wrong, and what to do."""
    finding, _, remedy = text.partition("; ")
    return finding, remedy or "correct it"


def not_routed(status: int, method: str, path: str, allowed: str | None) -> Refused:
    """The problem of a path or method that there is not.

    Args:
        allowed: the path's methods, where they are known.
    """
    if status == NO_METHOD.status:
        remedy = f"use {allowed}, /docs lists what there is" if allowed else _LISTED
        finding = f"the method of {shortened(path)} is {shortened(method)}"
        problem = refused(NO_METHOD, finding, remedy, "method", shown(method))
        return Refused(problem.problem, {"Allow": allowed} if allowed else None)
    finding = f"the path is {shown(path)}, which there is not"
    return refused(NO_PATH, finding, _LISTED, "path", shown(path))


def wrong_query(problem: ErrorDetails, model: type[BaseModel]) -> Refused:
    """The problem of what stands behind the ``?``; of several, one."""
    name = shortened(str(problem["loc"][-1]))
    value = shown(problem["input"])
    if problem["type"] == "extra_forbidden":
        names = ", ".join(model.model_fields)
        remedy = f"leave it out, or correct its name: {names}"
        return refused(INVALID, f"there is no query parameter {name!r}", remedy, name, value)
    remedy = "give true or false"
    return refused(INVALID, f"the query parameter {name!r} is {value}", remedy, name, value)


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
    elif hasattr(value, "__len__"):
        return f"a list of {len(value)}"
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of more than 4,300 digits.
        return "a number of more than 4,300 digits"
    return shortened(text)
