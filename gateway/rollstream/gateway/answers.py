"""Answers of the gateway, and of its connections before there is a call."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from rollstream.gateway.models import Answer
from rollstream.gateway.problems import MEDIA_TYPE, Refused
from rollstream.runtime.entropy import SystemEntropy

RETRY_AFTER_MAX_S = 5
_entropy = SystemEntropy()


def answer(holds: Answer, status: int = 200) -> Response:
    """The answer that holds this."""
    return Response(msgspec.json.encode(holds), status, media_type="application/json")


def problem_answer(found: Refused) -> Response:
    """The answer that a call was refused. Those who are to send again do not all come at one
    time."""
    headers = found.headers
    if found.retry:
        after_s = 1 + int(_entropy.token(4), 16) % RETRY_AFTER_MAX_S
        headers = {**headers, "Retry-After": str(after_s)}
    content = msgspec.json.encode(found.problem)
    return Response(content, found.problem.status, headers, MEDIA_TYPE)
