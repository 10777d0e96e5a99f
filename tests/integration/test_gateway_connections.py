"""Whatever comes over a connection: a problem with a remedy, or an end by its deadline."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.served_gateway import TIMEOUT_S, served
from harness.step_writers import STEP, STEPS, bearer
from rollstream.gateway.connections import HEAD_BYTES_MAX, PIPELINED_MAX

BODY = json.dumps({"steps": [STEP]}).encode()
TYPE = b"Content-Type: application/json\r\n"
TOKEN = f"Authorization: {bearer()['Authorization']}\r\n".encode()
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNK = b"%x\r\n%b\r\n" % (len(BODY), BODY)
GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"


def head(headers: bytes, path: bytes = STEPS.encode()) -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\n%b%b%b\r\n" % (path, TOKEN, TYPE, headers)


def length(of: int | str) -> bytes:
    return f"Content-Length: {of}\r\n".encode()


def whole(headers: bytes = b"", body: bytes = BODY) -> bytes:
    return head(length(len(body)) + headers) + body


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


@contextmanager
def connection(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connected:
        yield connected


def received(connected: socket.socket) -> bytes:
    """All that came until the gateway ended the connection."""
    parts = []
    while part := connected.recv(65_536):
        parts.append(part)
    return b"".join(parts)


def problem(answer: bytes, status: int) -> dict[str, Any]:
    top, _, content = answer.partition(b"\r\n\r\n")
    assert top.startswith(b"HTTP/1.1 %d " % status), answer
    assert b"application/problem+json" in top.lower()
    found: dict[str, Any] = json.loads(content)
    assert found["detail"]
    assert found["remedy"]
    assert found["status"] == status
    return found


NO_REQUESTS = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "two lengths": head(length(5) + length(len(BODY))) + BODY,
    "a length below 0": head(length(-5)) + BODY,
    "a length of 23 digits": head(length("9" * 23)) + BODY,
    "a length and chunks": head(length(len(BODY)) + CHUNKED) + CHUNK,
    "no length": head(b"") + BODY,
    "too short a length": head(length(5)) + BODY,
    "a chunk of no size": head(CHUNKED) + b"zz\r\n" + BODY,
    "a chunk of too large a size": head(CHUNKED) + b"f" * 18 + b"\r\n" + BODY,
    "a header with a zero byte": whole(b"X: a\x00b\r\n"),
    "a header with a space in its name": whole(b"X y : a\r\n"),
    "another protocol": whole(b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"),
    "bytes behind a request": whole() + b"\x00garbage",
    "too many requests at once": whole() * (PIPELINED_MAX + 2),
}


@pytest.mark.parametrize("sent", NO_REQUESTS.values(), ids=NO_REQUESTS.keys())
def test_what_is_no_http_is_a_problem_and_ends_the_connection(
    port: int, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with connection(port) as connected:
        connected.sendall(sent)
        problem(received(connected), 400)
    with connection(port) as connected:  # By now the requests before it are done with.
        connected.sendall(GET + b"Connection: close\r\n\r\n")
        assert received(connected).startswith(b"HTTP/1.1 200")
    assert "Exception" not in caplog.text


LARGE = {
    "in one header": whole(b"X: %b\r\n" % (b"a" * HEAD_BYTES_MAX)),
    "in many headers": whole(b"X: a\r\n" * HEAD_BYTES_MAX),
    "in the path": head(length(0), b"/" + b"a" * HEAD_BYTES_MAX),
    "in a header without an end": head(b"")[:-2] + b"X: " + b"a" * HEAD_BYTES_MAX * 8,
}


@pytest.mark.parametrize("sent", LARGE.values(), ids=LARGE.keys())
def test_a_head_that_is_too_large_is_refused(port: int, sent: bytes) -> None:
    with connection(port) as connected:
        connected.sendall(sent)
        assert str(HEAD_BYTES_MAX) in problem(received(connected), 431)["detail"]


@pytest.mark.parametrize(
    ("headers", "status", "field"),
    [
        (b"Content-Type: text/plain\r\n", 415, "Content-Type"),
        (b"Content-Encoding: gzip\r\n", 415, "Content-Encoding"),
        (b"Content-Encoding: identity\r\nContent-Encoding: gzip\r\n", 415, "Content-Encoding"),
        (b"Authorization: Bearer other\r\n", 401, "Authorization"),
    ],
)
def test_headers_that_contradict_are_refused(
    port: int, headers: bytes, status: int, field: str
) -> None:
    with connection(port) as connected:
        connected.sendall(whole(headers + b"Connection: close\r\n"))
        assert problem(received(connected), status)["field"] == field


def test_chunks_that_are_encoded_otherwise_are_refused(port: int) -> None:
    with connection(port) as connected:
        coded = b"Transfer-Encoding: gzip, chunked\r\nConnection: close\r\n"
        connected.sendall(head(coded) + CHUNK + b"0\r\n\r\n")
        assert problem(received(connected), 415)["field"] == "Transfer-Encoding"


@pytest.mark.parametrize("sent", [b"", b"POST /v1", b"\r\n\r\n", whole()[:-500]])
def test_a_request_that_does_not_come_ends_its_connection(hasty_port: int, sent: bytes) -> None:
    with connection(hasty_port) as connected:
        for byte in sent:
            connected.sendall(bytes([byte]))
        assert b"HTTP/1.1 200" not in received(connected)


@pytest.mark.parametrize("sent", [head(length(1_000)) + BODY, head(CHUNKED) + CHUNK])
def test_a_body_that_does_not_end_is_refused_and_its_connection_ends(
    hasty_port: int, sent: bytes
) -> None:
    with connection(hasty_port) as connected:
        connected.sendall(sent)
        assert "gateway.timeout_s" in problem(received(connected), 408)["detail"]


def test_a_connection_ends_where_the_body_of_what_was_answered_does_not(port: int) -> None:
    with connection(port) as connected:
        connected.sendall(GET + CHUNKED + b"\r\n" + CHUNK)
        assert received(connected).startswith(b"HTTP/1.1 200")


def test_a_connection_ends_where_answers_are_not_read(hasty_port: int) -> None:
    asked = b"GET /static-offline-docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: x\r\n\r\n"
    with connection(hasty_port) as connected:
        connected.sendall(asked.replace(b"GET", b"HEAD"))
        size = int(re.findall(rb"content-length: (\d+)", connected.recv(65_536))[0])
        connected.sendall(asked * PIPELINED_MAX)
        for _ in range(3):  # Which end later than it may be written to.
            with connection(hasty_port) as other:
                assert received(other) == b""
        assert len(received(connected)) < PIPELINED_MAX * size


def test_requests_one_after_the_other_and_a_few_at_once_are_answered(port: int) -> None:
    with connection(port) as connected:
        connected.sendall(GET + b"\r\n")
        assert connected.recv(65_536).startswith(b"HTTP/1.1 200")
        last = GET + b"Connection: close\r\n\r\n"
        connected.sendall((GET + b"\r\n") * (PIPELINED_MAX // 2) + last)
        assert received(connected).count(b"HTTP/1.1 200") == PIPELINED_MAX // 2 + 1


@settings(max_examples=25, deadline=None, derandomize=True)
@given(edits=st.dictionaries(st.integers(0, len(whole()) - 1), st.integers(0, 255), max_size=3))
def test_no_bytes_are_a_defect_or_wait_without_an_end(
    hasty_port: int, edits: dict[int, int]
) -> None:
    sent = bytearray(whole())
    for index, byte in edits.items():
        sent[index] = byte
    with connection(hasty_port) as connected:
        connected.sendall(sent)
        assert connected.recv(65_536)[9:12] != b"500"
