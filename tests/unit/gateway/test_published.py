"""What was answered durable is in the log as it was sent."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from harness.admission import announce, announced
from harness.examples import examples
from harness.producers import new_layout, published, segments_of
from harness.step_writers import STEP, STEPS, bearer, gateway_over
from rollstream.gateway.models import TOKEN_ID_MAX
from rollstream.producers import AsyncStepProducer
from rollstream.schemas.ids import step_rollout_uid
from rollstream.schemas.ingest.entry import EntryKind
from rollstream.schemas.rules import GROUP_SIZE_MAX, INT_MAX, LOGPROB_MIN, LONG_MAX
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.topics.layout import Layout

ARRAYS = {"prompt_ids": "int32", "response_ids": "int32", "logprobs": "float32"}
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
REWARDS = st.floats(allow_nan=False, allow_infinity=False, width=32)
METADATA = st.dictionaries(
    st.text(st.characters(codec="utf-8"), max_size=10),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | NUMBERS | NAMES,
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=5,
    ),
    max_size=3,
)


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """A valid step, but for its trajectory; with or without what may be left out."""
    tokens = st.lists(st.integers(0, TOKEN_ID_MAX), max_size=6)
    response = draw(tokens)
    prompt = st.lists(st.integers(0, TOKEN_ID_MAX), min_size=not response, max_size=6)
    step = {
        "prompt_ids": draw(prompt),
        "response_ids": response,
        "step_index": draw(st.integers(0, INT_MAX)),
        "policy_version": draw(st.text("abc-/ .", min_size=1, max_size=12)),
        "weight_step": draw(st.integers(-1, LONG_MAX)),
    }
    logprobs = st.lists(
        st.floats(LOGPROB_MIN, 0.0, allow_subnormal=False, width=32),
        min_size=len(response),
        max_size=len(response),
    )
    optional = {
        "logprobs": st.none() | logprobs,
        "reward": st.none() | REWARDS,
        "is_last": st.booleans(),
        "n_rollouts": st.none() | st.integers(1, GROUP_SIZE_MAX),
        "metadata": st.none() | METADATA,
        "policy_epoch": st.integers(0, INT_MAX),
        "lineage": st.text(st.characters(codec="utf-8"), max_size=10),
        "example_id": NAMES,
    }
    given = draw(st.sets(st.sampled_from(sorted(optional))))
    return {**step, **{name: draw(optional[name]) for name in sorted(given)}}


def packed(values: list[Any], dtype: str) -> dict[str, str]:
    """The compact form."""
    raw = np.array(values, np.dtype(dtype).newbyteorder("<")).tobytes()
    return {"dtype": dtype, "base64": base64.b64encode(raw).decode()}


class World:
    """A log in memory, and gateways that write to it."""

    def __init__(self) -> None:
        self.logs = MemoryLogs()
        self.broker = MemoryBroker(self.logs)
        self.layout: Layout = new_layout(self.broker, "math")

    def gateway(self, **gateway: Any) -> FastAPI:
        broker = MemoryBroker(self.logs)
        writer = AsyncStepProducer(broker=broker, namespace=self.layout.namespace)
        return gateway_over(writer, **gateway)

    def segments(self) -> list[Any]:
        return segments_of(published(self.broker, self.layout, "math"))


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def client(world: World) -> Iterator[TestClient]:
    with TestClient(world.gateway(), headers=bearer()) as client:
        yield client


@pytest.mark.proves("B1")
@settings(max_examples=examples(50))
@given(
    bodies=st.lists(bodies(), min_size=1, max_size=3), compact=st.sets(st.sampled_from([*ARRAYS]))
)
def test_any_valid_step_is_published_as_it_was_sent(
    world: World, client: TestClient, bodies: list[dict[str, Any]], compact: set[str]
) -> None:
    sent = []
    for body in bodies:
        body["trajectory_uid"], body["prompt_uid"] = uuid4().hex, uuid4().hex
        given = {name for name in compact if body.get(name) is not None}
        sent.append(body | {name: packed(body[name], ARRAYS[name]) for name in given})
    answer = client.post(STEPS, params={"durable": True}, json={"steps": sent})
    assert answer.status_code == 200, answer.text
    found = {one["trajectory_uid"]: one for one in world.segments()}
    for body in bodies:
        fields = found[body["trajectory_uid"]]
        uid = step_rollout_uid(body["prompt_uid"], body["trajectory_uid"])
        assert fields["rollout_uid"] == uid
        assert fields["group_uid"] == body["prompt_uid"]
        assert fields["example_id"] == body.get("example_id", body["prompt_uid"])
        assert fields["segment_idx"] == body["step_index"]
        assert fields["is_last_segment"] == body.get("is_last", False)
        assert fields["group_size"] == (body.get("n_rollouts") or 0)
        assert fields["reward"] == body.get("reward")
        assert json.loads(fields["metadata"]) == (body.get("metadata") or {})
        for name in ("policy_version", "weight_step"):
            assert fields[name] == body[name]
        for name, default in (("policy_epoch", 0), ("lineage", "")):
            assert fields[name] == body.get(name, default)
        assert ids(fields["prompt_tokens"]) == body["prompt_ids"]
        assert ids(fields["output_tokens"]) == body["response_ids"]
        logprobs = fields["logprobs"]
        got = None if logprobs is None else np.frombuffer(logprobs, "<f4").tolist()
        assert got == body.get("logprobs")


def ids(packed: bytes) -> list[int]:
    found: list[int] = np.frombuffer(packed, "<i4").tolist()
    return found


def test_a_step_that_contradicts_its_call_publishes_none_of_it(
    world: World, client: TestClient
) -> None:
    before = len(world.segments())
    short = {**STEP, "step_index": 1, "logprobs": [-1.0]}
    answer = client.post(STEPS, params={"durable": True}, json={"steps": [STEP, short]})
    assert answer.status_code == 422
    assert answer.json()["field"] == "steps[1].logprobs"
    assert "2 output tokens" in answer.json()["detail"]
    assert len(world.segments()) == before


def test_two_gateways_take_steps_of_one_trajectory_and_its_end() -> None:
    world = World()
    with (
        TestClient(world.gateway(), headers=bearer()) as first,
        TestClient(world.gateway(), headers=bearer()) as second,
    ):
        for index in range(6):
            step = {**STEP, "step_index": index, "n_rollouts": 1}
            client = second if index % 2 else first
            answer = client.post(STEPS, params={"durable": True}, json={"steps": [step]})
            assert answer.status_code == 200
        path = "/v1/environments/math/trajectories/t-1/complete"
        end = {"prompt_uid": "p-1", "steps": 6}
        assert second.post(path, params={"durable": True}, json=end).status_code == 200
    logged = published(world.broker, world.layout, "math")
    assert [one.fields["segment_idx"] for one in logged] == [0, 1, 2, 3, 4, 5, 6]
    assert [one.entry.kind for one in logged[5:]] == [EntryKind.STEP, EntryKind.ENDED]
    uids = {(one.fields["rollout_uid"], one.fields["trajectory_uid"]) for one in logged}
    assert uids == {(step_rollout_uid("p-1", "t-1"), "t-1")}


def test_a_closing_gateway_flushes_what_it_accepted() -> None:
    world = World()
    with TestClient(world.gateway(), headers=bearer()) as client:
        for index in range(20):
            step = {**STEP, "step_index": index}
            assert client.post(STEPS, json={"steps": [step]}).status_code == 202
    assert [one["segment_idx"] for one in world.segments()] == [*range(20)]


def policy_of(client: TestClient, **query: str) -> Any:
    return client.get("/v1/environments/math/policy", params=query)


def test_the_newest_policy_is_served_and_a_step_names_it_by_its_version() -> None:
    broker = MemoryBroker()
    layout = new_layout(broker, "math")
    writer = AsyncStepProducer(broker=broker, namespace=layout.namespace)
    topic = layout.admission("math")
    with TestClient(gateway_over(writer), headers=bearer()) as client:
        none = policy_of(client)
        assert (none.status_code, none.json()["type"]) == (404, "urn:rollstream:problem:no-policy")
        announce(broker, topic, announced(7, policy_epoch=2, metadata='{"bits":8}'))
        while policy_of(client).status_code == 404:  # The log is followed.
            pass
        policy = policy_of(client).json()
        assert policy == {
            "version": "step-7",
            "step": 7,
            "epoch": 2,
            "lineage": "",
            "weights": "/weights/7",
            "metadata": {"bits": 8},
        }
        step = {name: value for name, value in STEP.items() if name != "weight_step"}
        step["policy_version"] = policy["version"]
        assert client.post(STEPS, json={"steps": [step]}, params={"durable": "true"}).is_success
        wrong = {**step, "policy_version": "v", "weight_step": 6, "step_index": 1}
        refused = client.post(STEPS, json={"steps": [wrong]})
        assert (refused.status_code, refused.json()["field"]) == (422, "steps[0].weight_step")
        announce(broker, topic, announced(1, sampler="b", lineage="other"))
        while policy_of(client).status_code == 200:
            pass
        assert policy_of(client).json()["field"] == "lineage"
        assert policy_of(client, lineage="other").json()["step"] == 1
        assert policy_of(client, durable="true").status_code == 400
        announce(broker, topic, announced(2, sampler="b", lineage="other", over=True))
        while policy_of(client, lineage="other").status_code == 200:
            pass
        over = policy_of(client, lineage="other")
        assert (over.status_code, over.json()["type"]) == (404, "urn:rollstream:problem:run-over")
    (logged,) = segments_of(published(broker, layout, "math"))
    assert (logged["weight_step"], logged["policy_epoch"]) == (7, 2)
