"""Bytes over a connection: a problem with a remedy where they are no call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from harness.raw_connections import connection, received
from harness.served_gateway import TIMEOUT_S, served
from harness.step_writers import STEP, STEPS, bearer

BODY = json.dumps({"steps": [STEP]}).encode()
TYPE = b"Content-Type: application/json\r\n"
TOKEN = f"Authorization: {bearer()['Authorization']}\r\n".encode()
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNK = b"%x\r\n%b\r\n" % (len(BODY), BODY)


def head(headers: bytes) -> bytes:
    ours = TOKEN + TYPE + b"Connection: close\r\n"
    return b"POST %b HTTP/1.1\r\nHost: x\r\n%b%b\r\n" % (STEPS.encode(), ours, headers)


def length(of: int) -> bytes:
    return f"Content-Length: {of}\r\n".encode()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of a gateway whose deadlines only a hang reaches."""
    with served(timeout_s=TIMEOUT_S) as port:
        yield port


@pytest.fixture(scope="module")
def hasty_port() -> Iterator[int]:
    """Of one that waits for a client for a second."""
    with served(timeout_s=1.0) as port:
        yield port


def problem(answer: bytes, status: int) -> dict[str, Any]:
    top, _, content = answer.partition(b"\r\n\r\n")
    assert top.startswith(b"HTTP/1.1 %d " % status), answer
    assert b"application/problem+json" in top.lower()
    found: dict[str, Any] = json.loads(content)
    assert found["detail"]
    assert found["remedy"]
    assert found["status"] == status
    return found


@pytest.mark.parametrize(
    ("headers", "status", "field"),
    [
        (b"Content-Type: text/plain\r\n", 415, "Content-Type"),
        (b"Content-Encoding: gzip\r\n", 415, "Content-Encoding"),
        (b"Content-Encoding: identity\r\nContent-Encoding: gzip\r\n", 415, "Content-Encoding"),
        (b"Authorization: Bearer other\r\n", 401, "Authorization"),
        (b"Upgrade: h2c\r\n", 415, "Upgrade"),
    ],
)
def test_headers_that_contradict_are_refused(
    port: int, headers: bytes, status: int, field: str
) -> None:
    with connection(port) as connected:
        connected.sendall(head(length(len(BODY)) + headers) + BODY)
        assert problem(received(connected), status)["field"] == field


def test_chunks_that_are_encoded_otherwise_are_refused(port: int) -> None:
    with connection(port) as connected:
        coded = b"Transfer-Encoding: gzip, chunked\r\n"
        connected.sendall(head(coded) + CHUNK + b"0\r\n\r\n")
        assert problem(received(connected), 415)["field"] == "Transfer-Encoding"


@pytest.mark.parametrize("sent", [head(length(1_000)) + BODY, head(CHUNKED) + CHUNK])
def test_a_body_that_does_not_end_is_refused_and_its_connection_ends(
    hasty_port: int, sent: bytes
) -> None:
    with connection(hasty_port) as connected:
        connected.sendall(sent)
        assert "gateway.timeout_s" in problem(received(connected), 408)["detail"]
