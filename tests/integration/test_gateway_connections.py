"""Bytes over a connection: a problem with a remedy where they are no call."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from harness.raw_connections import connection, received
from harness.served_gateway import TIMEOUT_S, served
from harness.step_writers import STEP, STEPS, bearer
from rollstream.gateway.connections import HEAD_BYTES_MAX, PIPELINED_MAX
from rollstream.runtime.deadline import Deadline

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


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /" + b"a" * 2 * HEAD_BYTES_MAX,
        b"GET /healthz HTTP/1.1\r\nX-Header: " + b"a" * 2 * HEAD_BYTES_MAX,
        b"GET /healthz HTTP/1.1\r\n" + b"X-Header: a\r\n" * (HEAD_BYTES_MAX // 6),
        head(CHUNKED) + CHUNK + b"0\r\n" + b"X-Trailer: a\r\n" * (HEAD_BYTES_MAX // 6),
    ],
    ids=["address", "header", "headers", "trailers"],
)
def test_headers_without_an_end_are_refused(port: int, sent: bytes) -> None:
    with connection(port, sent) as connected:
        assert str(HEAD_BYTES_MAX) in problem(received(connected), 431)["detail"]


def test_headers_of_what_they_may_have_are_taken(port: int) -> None:
    headers = length(len(BODY)) + b"X-Header: %b\r\n" % (b"a" * (HEAD_BYTES_MAX - 1_024))
    with connection(port, head(headers) + BODY) as connected:
        assert received(connected).startswith(b"HTTP/1.1 202 ")


def test_requests_beyond_those_that_may_wait_are_refused_and_the_connection_ends(port: int) -> None:
    with connection(port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 1_000) as connected:
        *answers, last = received(connected).split(b"HTTP/1.1 ")[1:]
    assert len(answers) == PIPELINED_MAX + 1
    assert all(one.startswith(b"200 ") for one in answers)
    assert "wait for answers" in problem(b"HTTP/1.1 " + last, 429)["detail"]
    assert b"connection: close" in last


@pytest.mark.parametrize(
    ("behind", "status"),
    [
        (b"no HTTP\r\n\r\n", 400),
        (b"GET /" + b"a" * 2 * HEAD_BYTES_MAX, 431),
        (head(CHUNKED) + b"no chunk\r\n", 400),
    ],
)
def test_a_call_before_bytes_that_are_refused_is_answered_first(
    port: int, behind: bytes, status: int
) -> None:
    call = head(length(len(BODY))).replace(b"Connection: close\r\n", b"") + BODY
    with connection(port, call + behind) as connected:
        first, second = received(connected).split(b"HTTP/1.1 ")[1:]
    assert first.startswith(b"202 ")
    problem(b"HTTP/1.1 " + second, status)


def test_a_call_that_is_refused_is_answered_once(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    without_token = head(CHUNKED).replace(TOKEN, b"")
    with connection(port, without_token + b"no chunk\r\n") as connected:
        problem(received(connected), 400)
    with connection(port, head(length(len(BODY))) + BODY) as connected:
        assert received(connected).startswith(b"HTTP/1.1 202 ")
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


def test_a_client_that_reads_no_answer_is_cut_off() -> None:
    """Its environment may have another connection then."""
    unread = head(length(len(BODY))).replace(b"Connection: close\r\n", b"") + BODY
    unread += b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * PIPELINED_MAX
    limits = {"max_connections_per_environment": 1, "client_timeout_s": 0.2}
    with served(**limits) as port, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)  # So little is buffered.
        client.connect(("127.0.0.1", port))
        client.sendall(unread)
        assert client.recv(12) == b"HTTP/1.1 202"
        deadline = Deadline(TIMEOUT_S)
        answer = b"HTTP/1.1 429"
        while answer.startswith(b"HTTP/1.1 429"):
            assert not deadline.passed()
            with connection(port, head(length(len(BODY))) + BODY) as another:
                answer = received(another)
        assert answer.startswith(b"HTTP/1.1 202")
