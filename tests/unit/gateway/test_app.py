"""What the gateway answers, over a writer in memory."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.testclient import TestClient

from harness.step_writers import (
    COMPLETE,
    STEP,
    STEPS,
    TOKENS,
    MemoryStepWriter,
    Reached,
    bearer,
    gateway_over,
)
from rollstream.gateway.models import StepBody, StepsBody
from rollstream.producers import Step
from rollstream.producers.errors import DeliveryFailed, RolloutTooLarge
from rollstream.schemas.errors import InvalidRollout
from rollstream.streams.errors import BrokerUnavailable, BufferFull, UnknownTopic

# What whoever can reach the port may ask.
OPEN = {
    *("/healthz", "/readyz", "/openapi.json"),
    *("/docs", "/docs/oauth2-redirect", "/static-offline-docs"),
}


@pytest.fixture
def writer() -> MemoryStepWriter:
    return MemoryStepWriter()


@pytest.fixture
def client(writer: MemoryStepWriter) -> Iterator[TestClient]:
    with TestClient(gateway_over(writer), headers=bearer()) as client:
        yield client


@asynccontextmanager
async def talking_to(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    """For requests that wait side by side."""
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://gateway", headers=bearer()
    ) as client:
        yield client


def in_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Runs a test that is a coroutine."""

    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


def problem(answer: Any, status: int) -> dict[str, Any]:
    """The problem details of an answer that has this status."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert found["status"] == status
    return found


def as_sent(step: Step) -> Step:
    """The step as a caller wrote it, in lists and objects, which can be compared."""
    names = ("prompt_ids", "response_ids", "logprobs")
    metadata = None if step.metadata is None else json.loads(str(step.metadata))
    lists = {name: getattr(step, name).tolist() for name in names}
    return step._replace(**lists, metadata=metadata)


@pytest.mark.parametrize(("durable", "status"), [(False, 202), (True, 200)])
def test_steps_reach_the_writer_in_their_order(
    client: TestClient, writer: MemoryStepWriter, durable: bool, status: int
) -> None:
    second = {**STEP, "step_index": 1, "reward": 1, "is_last": True, "metadata": {"tool": ["a"]}}
    answer = client.post(STEPS, params={"durable": durable}, json={"steps": [STEP, second]})
    assert answer.status_code == status
    assert answer.json() == {"accepted": 2, "durable": durable, "undelivered": 0}
    wanted = [Step(**{"reward": None, **one}) for one in (STEP, second)]
    assert [(environment, as_sent(step)) for environment, step in writer.steps] == [
        ("math", step) for step in wanted
    ]


def test_a_trajectory_is_completed_under_the_uid_of_the_path(
    client: TestClient, writer: MemoryStepWriter
) -> None:
    path = "/v1/environments/math/trajectories/run%2F7%20b/complete?durable=true"
    assert client.post(path, json={"prompt_uid": "p-1"}).status_code == 200
    assert client.post(path, json={"prompt_uid": "p-1", "steps": 3}).status_code == 200
    assert writer.completed == [("math", "run/7 b", "p-1", None), ("math", "run/7 b", "p-1", 3)]


def test_the_page_loads_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/docs")
    assert page.status_code == 200
    loaded = re.findall(r"""(?:src|href|url)\s*[=:]\s*["']([^"']+)""", page.text)
    assert {"/openapi.json", "/static-offline-docs/swagger-ui-bundle.js"} <= set(loaded)
    for path in loaded:
        assert path.startswith("/"), "a machine without a network has the page too"
        assert not path.startswith("//")
        found = client.get(path)
        assert found.status_code == 200, path
        assert len(found.content) > 1_000
    assert "/v1/environments/{environment}/steps" in client.get("/openapi.json").json()["paths"]


def routes_of(routes: Iterable[BaseRoute]) -> Iterator[Route]:
    """Every route behind these, but for files."""
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is not None:
            yield from routes_of(included.routes)
        elif isinstance(route, Mount):
            assert isinstance(route.app, StaticFiles)
            assert route.path in OPEN
        else:
            assert isinstance(route, Route | APIRoute), f"what does {route} answer?"
            yield route


CLOSED = [
    (method, route.path.replace(":path}", "}"))
    for route in routes_of(gateway_over(MemoryStepWriter()).routes)
    for method in sorted(route.methods or ())
    if route.path not in OPEN
]


def test_routes_are_found() -> None:
    assert ("POST", "/v1/environments/{environment}/steps") in CLOSED


@pytest.mark.proves("B2")
@pytest.mark.parametrize(("method", "path"), CLOSED)
@pytest.mark.parametrize(
    ("header", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": f"Basic {TOKENS['math']}"}, 401),
        ({"Authorization": f"Bearer {TOKENS['math']}x"}, 401),
        ({"Authorization": f"Bearer {TOKENS['math'][:-1]}"}, 401),
        (bearer("code"), 403),
    ],
)
def test_without_a_token_or_with_another_environments_every_call_is_refused(
    writer: MemoryStepWriter, method: str, path: str, header: dict[str, str], status: int
) -> None:
    path = path.format(environment="math", trajectory_uid="t-1")
    with TestClient(gateway_over(writer)) as client:
        for query in ("", "?durable=true", "?durable=nonsense"):
            answer = client.request(method, path + query, headers=header, json={"steps": [STEP]})
            problem(answer, status)
            assert ("WWW-Authenticate" in answer.headers) == (status == 401)
    assert not writer.steps
    assert not writer.completed


def test_the_token_of_an_environment_opens_it_and_several_do(writer: MemoryStepWriter) -> None:
    tokens = {"math": ["a" * 16, "b" * 16], "code": ["b" * 16]}
    with TestClient(gateway_over(writer, tokens=tokens)) as client:
        for token, environment, status in [
            ("a", "math", 200),
            ("b", "math", 200),
            ("b", "code", 200),
            ("a", "code", 403),
        ]:
            answer = client.post(
                f"/v1/environments/{environment}/steps?durable=true",
                headers={"Authorization": f"Bearer {token * 16}"},
                json={"steps": [STEP]},
            )
            assert answer.status_code == status


def test_without_tokens_only_configured_environments_exist(writer: MemoryStepWriter) -> None:
    with TestClient(gateway_over(writer, tokens={}, allow_anonymous=True)) as client:
        assert client.post(STEPS, json={"steps": [STEP]}).status_code == 202
        found = problem(client.post(STEPS.replace("math", "moth"), json={"steps": [STEP]}), 404)
    assert "'moth' is not configured" in found["detail"]


def test_unknown_paths_and_methods_are_problems_too(client: TestClient) -> None:
    assert problem(client.get("/v2"), 404)["type"] == "urn:rollstream:problem:unknown-path"
    answer = client.get(STEPS)
    found = problem(answer, 405)
    assert found["type"] == "urn:rollstream:problem:wrong-method"
    assert answer.headers["Allow"] == "POST"


@pytest.mark.parametrize("path", [STEPS, COMPLETE, "/docs", "/readyz"])
def test_no_path_redirects_to_the_host_that_the_caller_names(client: TestClient, path: str) -> None:
    for method in ("POST", "GET"):
        headers = {"Host": "elsewhere.example"}
        answer = client.request(method, f"{path}/", headers=headers, follow_redirects=False)
        assert "Location" not in answer.headers
        assert problem(answer, 404)["value"] == f"'{path}/'"


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_a_probe_answers_head_as_well(client: TestClient, path: str) -> None:
    answer = client.head(path)
    assert (answer.status_code, answer.headers) == (200, client.get(path).headers)


def test_a_token_at_another_environment_does_not_tell_whether_there_is_one(
    client: TestClient,
) -> None:
    body = {"steps": [STEP]}
    there, nowhere = (
        problem(client.post(f"/v1/environments/{name}/steps", json=body), 403)
        for name in ("code", "nope")
    )
    assert json.loads(json.dumps(there).replace("code", "nope")) == nowhere
    assert nowhere["remedy"].endswith("or correct the environment's name")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_refused_and_nothing_stays_held(
    writer: MemoryStepWriter, chunked: bool
) -> None:
    sizes: dict[str, Any] = {"max_body_bytes": 4_096, "max_pending_bytes": 4_096}
    with TestClient(gateway_over(writer, **sizes), headers=bearer()) as client:
        large = json.dumps({"steps": [STEP] * 100}).encode()
        parts: Any = (large[i : i + 512] for i in range(0, len(large), 512)) if chunked else large
        headers = {"Content-Type": "application/json"}
        assert (
            "max_body_bytes"
            in problem(client.post(STEPS, content=parts, headers=headers), 413)["detail"]
        )
        for _ in range(20):
            assert client.post(STEPS, json={"steps": [STEP]}).status_code == 202
    assert len(writer.steps) == 20


@pytest.mark.parametrize(
    ("error", "status", "retried", "detail"),
    [
        (BufferFull("the send buffer is full"), 429, True, "the send buffer is full"),
        (BrokerUnavailable("kafka:9092 did not answer"), 503, True, "did not answer"),
        (DeliveryFailed(["t-1"], [], "kafka:9092", "timed out"), 503, True, "timed out"),
        (UnknownTopic("topic rollouts.math does not exist"), 503, True, "does not exist"),
        (RolloutTooLarge("step 0", 20, 10, "send less"), 413, False, "send less"),
        (
            InvalidRollout("logprobs", 2, "give 3", "has 2 values"),
            422,
            False,
            "logprobs has 2 values",
        ),
    ],
)
@pytest.mark.parametrize("durable", ["false", "true"])
@pytest.mark.parametrize(
    ("path", "body"), [(STEPS, {"steps": [STEP]}), (COMPLETE, {"prompt_uid": "p-1"})]
)
def test_what_the_writer_refuses_is_answered_with_its_text(
    client: TestClient,
    writer: MemoryStepWriter,
    path: str,
    body: dict[str, Any],
    durable: str,
    error: Exception,
    status: int,
    retried: bool,
    detail: str,
) -> None:
    writer.refusal = error
    answer = client.post(path, params={"durable": durable}, json=body)
    assert detail in problem(answer, status)["detail"]
    assert ("Retry-After" in answer.headers) == retried
    writer.refusal = None
    assert client.post(path, params={"durable": "true"}, json=body).json()["undelivered"] == 0


def test_before_its_topic_is_known_an_environments_first_call_waits_for_the_broker(
    client: TestClient, writer: MemoryStepWriter
) -> None:
    writer.failure = UnknownTopic("topic rollouts.math does not exist")
    assert "does not exist" in problem(client.post(STEPS, json={"steps": [STEP]}), 503)["detail"]
    writer.failure = None
    answer = client.post(STEPS, json={"steps": [STEP]})
    assert (answer.status_code, answer.json()["undelivered"]) == (202, 0)


def test_what_was_accepted_and_not_delivered_is_said_by_every_later_answer(
    client: TestClient, writer: MemoryStepWriter
) -> None:
    client.post(STEPS, json={"steps": [STEP]})  # From now on the topic is known.
    writer.answering.clear()
    writer.failure = DeliveryFailed(["t-1"], [], "kafka:9092", "timed out", entries=2)
    assert client.post(STEPS, json={"steps": [STEP, STEP, STEP]}).json()["undelivered"] == 0
    writer.answering.set()
    client.get("/healthz")  # The loop runs on.
    writer.failure = None
    answer = client.post(STEPS, params={"durable": True}, json={"steps": [STEP]})
    assert answer.json() == {"accepted": 1, "durable": True, "undelivered": 2}
    other = client.post(
        "/v1/environments/code/steps", json={"steps": [STEP]}, headers=bearer("code")
    )
    assert other.json()["undelivered"] == 0


def test_a_durable_call_ends_by_its_deadline(writer: MemoryStepWriter) -> None:
    writer.answering.clear()
    with TestClient(gateway_over(writer, timeout_s=0.05), headers=bearer()) as client:
        answer = client.post(STEPS, params={"durable": True}, json={"steps": [STEP]})
        assert "a retry is harmless" in problem(answer, 504)["detail"]
        assert "Retry-After" in answer.headers


@in_a_loop
async def test_a_body_that_does_not_come_is_waited_for_until_the_deadline() -> None:
    writer = MemoryStepWriter()
    never = asyncio.Event()

    async def stuck() -> AsyncIterator[bytes]:
        yield b"{"
        await never.wait()

    async with talking_to(gateway_over(writer, timeout_s=0.05)) as client:
        answer = await client.post(
            STEPS, content=stuck(), headers={"Content-Type": "application/json"}
        )
        problem(answer, 408)


@in_a_loop
async def test_steps_on_their_way_are_bounded_until_they_arrived() -> None:
    writer = MemoryStepWriter()
    body = json.dumps({"steps": [STEP] * 2}).encode()
    limits: dict[str, Any] = {"max_body_bytes": 1024, "max_pending_bytes": 6 * 1024}
    limits["max_pending_bytes_per_environment"] = 6 * 1024
    headers = {"Content-Type": "application/json"}
    async with talking_to(gateway_over(writer, **limits)) as client:
        await client.post(STEPS, json={"steps": [STEP]})  # From now on the topic is known.
        writer.answering.clear()
        for _ in range(2):
            assert (await client.post(STEPS, content=body, headers=headers)).status_code == 202
        answer = await client.post(STEPS, content=body, headers=headers)
        assert "max_pending_bytes" in problem(answer, 429)["detail"]
        assert "Retry-After" in answer.headers
        writer.answering.set()
        while writer.waiting:
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # The gateway sees it, too.
        assert (await client.post(STEPS, content=body, headers=headers)).status_code == 202
    assert len(writer.steps) == 7


@in_a_loop
async def test_requests_at_once_are_bounded() -> None:
    writer = MemoryStepWriter()
    limits: dict[str, Any] = {"max_requests": 2, "max_requests_per_environment": 2}
    async with talking_to(gateway_over(writer, **limits)) as client:
        await client.post(STEPS, json={"steps": [STEP]})  # From now on the topic is known.
        writer.answering.clear()
        durable: dict[str, Any] = {"params": {"durable": True}, "json": {"steps": [STEP]}}
        waiting = [asyncio.create_task(client.post(STEPS, **durable)) for _ in range(2)]
        while writer.waiting < 2:
            await asyncio.sleep(0)
        refused = await client.post(STEPS, **durable)
        assert "max_requests" in problem(refused, 503)["detail"]
        assert "Retry-After" in refused.headers
        writer.answering.set()
        assert [(await one).status_code for one in waiting] == [200, 200]


@in_a_loop
async def test_one_environment_takes_no_request_of_another() -> None:
    writer = MemoryStepWriter()
    async with talking_to(gateway_over(writer, max_requests=8)) as client:
        code: dict[str, Any] = {"url": STEPS.replace("math", "code"), "headers": bearer("code")}
        math: dict[str, Any] = {"url": STEPS}
        for one in (math, code):
            await client.post(json={"steps": [STEP]}, **one)  # From now on the topic is known.
        writer.answering.clear()
        durable: dict[str, Any] = {"params": {"durable": True}, "json": {"steps": [STEP]}}
        waiting = [asyncio.create_task(client.post(STEPS, **durable)) for _ in range(4)]
        while writer.waiting < 4:
            await asyncio.sleep(0)
        refused = problem(await client.post(STEPS, **durable), 429)
        assert "4 requests at once of environment math" in refused["detail"]
        assert "max_requests_per_environment is 4" in refused["detail"]
        answered = await client.post(json={"steps": [STEP]}, **code)
        assert answered.status_code == 202
        writer.answering.set()
        assert [(await one).status_code for one in waiting] == [200] * 4


@in_a_loop
async def test_one_environment_takes_no_bytes_of_another() -> None:
    writer = MemoryStepWriter()
    limits: dict[str, Any] = {"max_body_bytes": 1024, "max_pending_bytes": 8 * 1024}
    body: dict[str, Any] = {"json": {"steps": [STEP] * 2}}
    async with talking_to(gateway_over(writer, **limits)) as client:
        code: dict[str, Any] = {"url": STEPS.replace("math", "code"), "headers": bearer("code")}
        math: dict[str, Any] = {"url": STEPS}
        for one in (math, code):
            await client.post(**body, **one)
        writer.answering.clear()
        assert (await client.post(STEPS, **body)).status_code == 202
        refused = problem(await client.post(STEPS, **body), 429)
        assert "max_pending_bytes_per_environment is 4096" in refused["detail"]
        assert (await client.post(**body, **code)).status_code == 202
        writer.answering.set()


def test_who_is_to_come_again_is_told_different_times(
    client: TestClient, writer: MemoryStepWriter
) -> None:
    writer.refusal = BufferFull("the send buffer is full")
    body = {"steps": [STEP]}
    told = {client.post(STEPS, json=body).headers["Retry-After"] for _ in range(100)}
    assert len(told) > 1
    assert told <= {"1", "2", "3", "4", "5"}


@in_a_loop
async def test_what_waits_for_the_broker_holds_no_lists_of_its_body() -> None:
    gc.collect()  # What other tests left.
    writer = MemoryStepWriter()
    async with talking_to(gateway_over(writer)) as client:
        await client.post(STEPS, json={"steps": [STEP]})  # From now on the topic is known.
        writer.answering.clear()
        durable: dict[str, Any] = {"params": {"durable": True}, "json": {"steps": [STEP]}}
        waiting = asyncio.create_task(client.post(STEPS, **durable))
        while not writer.waiting:
            await asyncio.sleep(0)
        assert not [one for one in gc.get_objects() if isinstance(one, StepsBody | StepBody)]
        writer.answering.set()
        assert (await waiting).status_code == 200


def test_readiness_follows_the_broker_and_health_does_not(writer: MemoryStepWriter) -> None:
    reach = Reached()
    with TestClient(gateway_over(writer, reach=reach)) as client:
        assert client.get("/readyz").status_code == 200
        reach.away = True
        assert "no broker answered" in problem(client.get("/readyz"), 503)["detail"]
        assert client.get("/healthz").json() == {"status": "ok"}
        reach.away = False
        assert client.get("/readyz").status_code == 200


@in_a_loop
async def test_an_ending_gateway_waits_for_what_it_accepted_and_takes_no_more() -> None:
    writer = MemoryStepWriter()
    app = gateway_over(writer)
    async with talking_to(app) as client:
        await client.post(STEPS, json={"steps": [STEP]})  # From now on the topic is known.
        writer.answering.clear()
        assert (await client.post(STEPS, json={"steps": [STEP]})).status_code == 202
        draining = asyncio.create_task(app.state.gateway.intake.drain())
        await asyncio.sleep(0)
        answer = await client.post(STEPS, json={"steps": [STEP]})
        assert "ends" in problem(answer, 503)["detail"]
        assert "ends" in problem(await client.get("/readyz"), 503)["detail"]
        assert not draining.done()
        writer.answering.set()
        await draining
    assert writer.closed
    assert len(writer.steps) == 2


@in_a_loop
async def test_draining_ends_by_its_deadline_and_counts_what_is_left() -> None:
    writer = MemoryStepWriter()
    app = gateway_over(writer, drain_timeout_s=0.05)
    async with talking_to(app) as client:
        await client.post(STEPS, json={"steps": [STEP]})  # From now on the topic is known.
        writer.answering.clear()
        assert (await client.post(STEPS, json={"steps": [STEP] * 3})).status_code == 202
        await app.state.gateway.intake.drain()
    assert writer.closed
    assert app.state.gateway.intake.undelivered == {"math": 3}
