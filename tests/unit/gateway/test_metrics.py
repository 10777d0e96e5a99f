"""A gateway shows its figures at a port of their own."""

from __future__ import annotations

import json
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from harness.scraping import ANY_PORT, addresses, get, scraped
from harness.served_gateway import served
from harness.step_writers import STEP, STEPS, TOKENS

TIMEOUT_S = 30.0


def submit(port: int, **headers: str) -> int:
    """The status of the answer to a step, of which two have the same uid."""
    body = json.dumps({"steps": [STEP]}).encode()
    url = f"http://127.0.0.1:{port}{STEPS}"
    request = Request(url, body, {"Content-Type": "application/json", **headers})
    try:
        with urlopen(request, timeout=TIMEOUT_S) as answer:
            return int(answer.status)
    except HTTPError as error:
        error.close()
        return error.code


def test_calls_and_refusals_are_counted_and_limits_are_shown() -> None:
    with served(ANY_PORT, tokens={"math": [TOKENS["math"]]}) as port:
        assert submit(port, Authorization=f"Bearer {TOKENS['math']}") in (200, 202)
        assert submit(port) == 401
        values = scraped()
        assert get("/healthz") == get("/readyz") == (200, "ok\n")
    assert values["rollstream_gateway_requests_total", "math"] == 1
    assert values["rollstream_gateway_refused_total", "no-token"] == 1
    taken = {key[1]: value for key, value in values.items() if key[0].endswith("gateway_taken_max")}
    assert taken == {
        "pending_bytes": 256 * 1024 * 1024,
        "requests": 256,
        "connections": 4096,
    }
    assert values["rollstream_gateway_taken", "requests"] == 0
    assert addresses() == []


def test_its_own_port_shows_nothing_of_it() -> None:
    with served(ANY_PORT) as port:
        assert get("/metrics", f"http://127.0.0.1:{port}")[0] == 404


def test_no_port_is_open_while_metrics_are_off() -> None:
    with served():
        assert addresses() == []
