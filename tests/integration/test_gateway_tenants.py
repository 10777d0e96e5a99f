"""Clients that open connections and send nothing: cut off, and no other environment's trouble."""

from __future__ import annotations

import json
import select
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest

from harness.raw_connections import connection, received
from harness.served_gateway import TIMEOUT_S, served
from harness.step_writers import STEP, STEPS, bearer

MIB = 1024 * 1024
CODE_STEPS = STEPS.replace("math", "code")
NEVER_S = 10 * TIMEOUT_S  # A time-out that only a hang reaches.


def head(announced: int) -> bytes:
    return (
        f"POST {STEPS} HTTP/1.1\r\nHost: x\r\nAuthorization: {bearer()['Authorization']}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {announced}\r\n\r\n"
    ).encode()


def problem(answer: bytes, status: int) -> dict[str, Any]:
    top, _, content = answer.partition(b"\r\n\r\n")
    assert top.startswith(b"HTTP/1.1 %d " % status), answer
    assert b"connection: close" in top.lower()
    found: dict[str, Any] = json.loads(content)
    return found


def posted(port: int, path: str = CODE_STEPS, environment: str = "code") -> httpx2.Response:
    """A call over a connection of its own."""
    step = {**STEP, "trajectory_uid": "other", "prompt_uid": "other"}
    return httpx2.post(
        f"http://127.0.0.1:{port}{path}",
        params={"durable": True},
        json={"steps": [step]},
        headers=bearer(environment),
        timeout=TIMEOUT_S,
    )


@pytest.mark.proves("F24")
def test_64_calls_that_announce_4_mib_and_send_nothing_keep_no_other_environment_out() -> None:
    with served(client_timeout_s=NEVER_S, timeout_s=NEVER_S) as port, ExitStack() as stack:
        for _ in range(64):
            stack.enter_context(connection(port, head(4 * MIB) + b"{"))
        assert [posted(port).status_code for _ in range(50)] == [200] * 50


@pytest.mark.proves("F24")
def test_more_calls_than_an_environment_may_have_keep_no_other_one_out() -> None:
    limits = {"max_requests": 8, "max_connections": 64}
    timeouts = {"client_timeout_s": NEVER_S, "timeout_s": NEVER_S}
    with served(**limits, **timeouts) as port, ExitStack() as stack:
        silent = [stack.enter_context(connection(port, head(4 * MIB))) for _ in range(5)]
        (refused,), _, _ = select.select(silent, [], [], TIMEOUT_S)
        assert refused.recv(12) == b"HTTP/1.1 429"
        assert posted(port).status_code == 200


@pytest.mark.parametrize(
    "sent", [b"", b"\r\n", b"POST / HTT", head(10)[:-2], head(10), head(10) + b"{"]
)
def test_a_client_that_sends_nothing_more_is_answered_408_and_its_connection_ends(
    sent: bytes,
) -> None:
    with served(client_timeout_s=0.2) as port, connection(port, sent) as connected:
        assert "client_timeout_s" in problem(received(connected), 408)["detail"]


def test_a_connection_that_was_answered_is_cut_off_within_its_next_headers() -> None:
    body = json.dumps({"steps": [STEP]}).encode()
    sent = head(len(body)) + body + b"GET / HT"
    with served(client_timeout_s=0.2) as port, connection(port, sent) as connected:
        first, _, second = received(connected).partition(b"HTTP/1.1 408")
        assert first.startswith(b"HTTP/1.1 202 ")
        assert b"client_timeout_s" in second


def test_a_client_that_sends_on_after_its_refusal_is_cut_off() -> None:
    sent = head(100 * MIB) + b"{"
    with served(client_timeout_s=0.2) as port, connection(port, sent) as connected:
        assert b"HTTP/1.1 413 " in received(connected)


def test_bytes_that_are_no_http_are_a_problem_with_a_remedy() -> None:
    with served() as port, connection(port, b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03") as tls:
        assert problem(received(tls), 400)["remedy"] == "send a request of HTTP/1.1, without TLS"


def test_the_oldest_connection_without_a_token_makes_room_for_a_new_one() -> None:
    with served(max_connections=4, client_timeout_s=NEVER_S) as port, ExitStack() as stack:
        silent = [stack.enter_context(connection(port)) for _ in range(4)]
        assert posted(port).status_code == 200
        assert "all connections are taken" in problem(received(silent[0]), 408)["detail"]


@pytest.mark.proves("F24")
def test_an_environment_has_no_more_connections_than_its_share() -> None:
    body = json.dumps({"steps": [STEP]}).encode()
    with served(max_connections=4, client_timeout_s=NEVER_S) as port, ExitStack() as stack:
        for _ in range(2):
            kept = stack.enter_context(connection(port, head(len(body)) + body))
            assert kept.recv(12) == b"HTTP/1.1 202"
        one_more = stack.enter_context(connection(port, head(len(body)) + body))
        refused = problem(received(one_more), 429)
        assert "max_connections_per_environment is 2" in refused["detail"]
        assert posted(port).status_code == 200
        kept.close()
        assert posted(port, STEPS, "math").status_code == 200


def test_a_connection_too_many_is_refused_if_all_have_sent_a_token() -> None:
    body = json.dumps({"steps": [STEP]}).encode()
    limits = {"max_connections": 2, "max_connections_per_environment": 2}
    with served(**limits, client_timeout_s=NEVER_S) as port, ExitStack() as stack:
        for _ in range(2):
            kept = stack.enter_context(connection(port, head(len(body)) + body))
            assert kept.recv(12) == b"HTTP/1.1 202"
        one_more = stack.enter_context(connection(port))
        assert "max_connections is 2" in problem(received(one_more), 503)["detail"]
