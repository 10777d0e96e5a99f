"""Over HTTP a trajectory fails, is scored, and has masks and arrays: what the logs hold then."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from harness.producers import published, segments_of
from harness.sealing import SealWorld
from harness.step_writers import STEP, STEPS, TOKENS, Reached, bearer
from harness.verifying import score_records
from rollstream.gateway import LateScores, create_app
from rollstream.producers import AsyncStepProducer, ScoreProducer
from rollstream.runtime.config.gateway import GatewayConfig
from rollstream.schemas.events import Scored
from rollstream.schemas.ids import step_rollout_uid
from rollstream.schemas.ingest.entry import EntryKind

MATH = "/v1/environments/math"
DURABLE = {"durable": True}


@pytest.fixture
def world() -> Iterator[SealWorld]:
    with SealWorld() as world:
        yield world


@contextmanager
def gateway(world: SealWorld) -> Iterator[TestClient]:
    """Over the world's logs in memory."""
    config = world.config.model_copy(
        update={"gateway": GatewayConfig.model_validate({"tokens": {"math": [TOKENS["math"]]}})}
    )
    broker, namespace = world.new_broker(), world.layout.namespace
    make = partial(ScoreProducer, broker=broker, namespace=namespace, clock=world.clock)
    scores = LateScores(make, 30.0)
    writer = AsyncStepProducer(broker=broker, namespace=namespace)
    app = create_app(config, writer=writer, reach=Reached(), scores=scores)
    with TestClient(app, headers=bearer()) as client:
        yield client
    scores.close()


@pytest.fixture
def client(world: SealWorld) -> Iterator[TestClient]:
    with gateway(world) as client:
        yield client


def step(trajectory: str, index: int = 0, **fields: Any) -> dict[str, Any]:
    given = {**STEP, "n_rollouts": 2, "reward": 1.0, **fields}
    return {**given, "trajectory_uid": trajectory, "step_index": index}


def post(client: TestClient, *steps: dict[str, Any]) -> Any:
    return client.post(STEPS, params=DURABLE, json={"steps": list(steps)})


def fail(client: TestClient, trajectory: str, **fields: Any) -> Any:
    body = {"prompt_uid": "p-1", "reason": "the browser crashed", **fields}
    return client.post(f"{MATH}/trajectories/{trajectory}/fail", params=DURABLE, json=body)


def score(client: TestClient, trajectory: str, **fields: Any) -> Any:
    body = {"prompt_uid": "p-1", "reward": 0.5, "scorer": "tests", **fields}
    return client.post(f"{MATH}/trajectories/{trajectory}/score", json=body)


def sealed(world: SealWorld) -> list[tuple[str, ...]]:
    with world.sealer() as sealer:
        world.until(sealer)
    return world.groups()


def test_a_prompt_does_not_wait_for_a_trajectory_that_failed(
    world: SealWorld, client: TestClient
) -> None:
    assert post(client, step("a"), step("b", is_last=True)).status_code == 200
    assert fail(client, "a").json() == {"accepted": 1, "durable": True, "undelivered": 0}
    assert fail(client, "a").status_code == 200, "a retry changes nothing"
    assert sealed(world) == [(step_rollout_uid("p-1", "b"),)]
    assert world.settled() == {"failed": 2, "duplicate": 1}


def test_a_trajectory_may_fail_before_the_first_step_of_its_prompt(
    world: SealWorld, client: TestClient
) -> None:
    assert fail(client, "a", n_rollouts=3, example_id="aime-7").status_code == 200
    rest = [step(one, is_last=True, n_rollouts=3, example_id="aime-7") for one in ("b", "c")]
    assert post(client, *rest).status_code == 200
    assert sealed(world) == [tuple(sorted(step_rollout_uid("p-1", one) for one in "bc"))]


def test_a_failure_is_of_the_example_that_the_prompts_steps_named(
    world: SealWorld, client: TestClient
) -> None:
    assert post(client, step("b", example_id="aime-7", is_last=True)).status_code == 200
    assert fail(client, "a").status_code == 200
    assert sealed(world) == [(step_rollout_uid("p-1", "b"),)]


def test_a_trajectory_that_has_ended_does_not_fail(world: SealWorld, client: TestClient) -> None:
    assert post(client, step("a", is_last=True)).status_code == 200
    refused = fail(client, "a")
    assert refused.status_code == 409
    assert refused.json()["field"] == "trajectory_uid"
    found = published(world.broker, world.layout, "math", world.environment.partitions)
    assert [one.entry.kind for one in found] == [EntryKind.STEP]


def scores(world: SealWorld) -> list[Scored]:
    return [event for _, _, event in score_records(world.config, "math", world.new_broker())]


def test_a_score_that_was_answered_is_in_the_log(world: SealWorld, client: TestClient) -> None:
    given = {"rewards": {"compiles": 1.0}, "flags": ["slow"], "attempt": "1"}
    assert score(client, "t%2F1", **given).json()["durable"] is True
    (found,) = scores(world)
    assert (found.scorer, found.attempt) == ("tests", "1")
    (one,) = found.scores
    assert one.rollout_uid == step_rollout_uid("p-1", "t/1")
    assert (one.reward, one.rewards, one.flags) == (0.5, {"compiles": 1.0}, ("slow",))


def test_a_wrong_score_is_named_and_those_beside_it_are_taken(
    world: SealWorld, client: TestClient
) -> None:
    for fields, field in (
        ({"reward": "1"}, "reward"),
        ({"rewards": {"a": None}}, "rewards.a"),
        ({"flags": ["x", 7]}, "flags[1]"),
        ({"scorer": ""}, "scorer"),
        ({"rewards": {"": 1.0}}, "rewards"),
    ):
        refused = score(client, "t", **fields)
        assert (refused.status_code, refused.json()["field"]) == (422, field), refused.text
    for uid in ("n" * 5_000, ""):
        refused = score(client, uid)
        assert (refused.status_code, refused.json()["field"]) == (422, "trajectory_uid")
        assert "rollout_uid" not in refused.json()["detail"]
    assert score(client, "t").status_code == 200
    assert len(scores(world)) == 1


def test_a_score_takes_no_query_parameter(client: TestClient) -> None:
    refused = client.post(f"{MATH}/trajectories/t/score?durable=false", json={})
    assert refused.status_code == 400
    assert "the query parameter 'durable' is 'false'; leave it out" in refused.json()["detail"]


def base64_of(values: Any, dtype: str) -> str:
    return base64.b64encode(np.array(values, dtype).tobytes()).decode()


ROUTED = [[3, 1], [0, 2]]


@pytest.mark.parametrize("mask", [[True, False], [1, 0]])
@pytest.mark.parametrize("data", [[3, 1, 0, 2], base64_of(ROUTED, "<i2")])
def test_masks_and_named_arrays_are_published_as_they_were_sent(
    world: SealWorld, client: TestClient, mask: list[Any], data: Any
) -> None:
    arrays = {
        "routed_experts": {"dtype": "int16", "shape": [2, 2], "data": data},
        "entropies": {"dtype": "float32", "shape": [2], "data": [0.5, 1]},
    }
    assert post(client, step("a", loss_mask=mask, token_arrays=arrays)).status_code == 200
    (fields,) = segments_of(
        published(world.broker, world.layout, "math", world.environment.partitions)
    )
    assert np.frombuffer(fields["loss_mask"], np.bool_).tolist() == [True, False]
    found = fields["token_arrays"]
    assert (found["routed_experts"].dtype, found["routed_experts"].shape) == ("<i2", (2,))
    assert found["routed_experts"].data == np.array(ROUTED, "<i2").tobytes()
    assert found["entropies"].data == np.array([0.5, 1], "<f4").tobytes()


def test_a_step_with_other_arrays_is_another_step(client: TestClient) -> None:
    def with_data(*data: float) -> dict[str, Any]:
        array = {"dtype": "float32", "shape": [2], "data": list(data)}
        return step("a", token_arrays={"values": array})

    assert post(client, with_data(1, 2)).status_code == 200
    assert post(client, with_data(1, 2)).status_code == 200
    assert post(client, with_data(1, 3)).status_code == 409


@pytest.mark.parametrize(
    ("changed", "field", "remedy"),
    [
        ({"dtype": "complex64"}, "dtype", 'give "bool" or'),
        ({"shape": []}, "shape", "give a list of 1 to 8"),
        ({"shape": [2, -1]}, "shape[1]", "give a whole number from 0"),
        ({"data": [1]}, "data", "give 2, as shape [2] of int8 has"),
        ({"data": "AAA="}, "data", None),
        ({"data": "AA=="}, "data", "give 2, as shape [2] of int8 has"),
        ({"data": [1, 300]}, "data[1]", "give what int8 can hold"),
        ({"data": [0.5, 1]}, "data[0]", "give what int8 can hold"),
        ({"data": [1, "2"]}, "data[1]", "give true or false"),
        ({"data": [2, 1], "dtype": "bool"}, "data[0]", "give what bool can hold"),
        ({"data": [1, 1e300], "dtype": "float32"}, "data[1]", "give what float32 can hold"),
        ({"shape": [1, 2]}, "", "its first axis must have one row for each"),
        ({"kind": "int8"}, "kind", "leave it out, or correct its name: dtype, shape, data"),
    ],
)
def test_a_wrong_array_is_named_with_a_remedy(
    client: TestClient, changed: dict[str, Any], field: str, remedy: str | None
) -> None:
    array = {"dtype": "int8", "shape": [2], "data": [1, 2], **changed}
    answer = post(client, step("a"), step("a", 1, token_arrays={"values": array}))
    if remedy is None:  # Two bytes.
        assert answer.status_code == 200
        return
    assert answer.status_code == 422
    found = answer.json()
    assert found["field"].startswith("steps[1].token_arrays")
    assert "values" in found["field"]
    assert found["field"].endswith(field)
    assert found["remedy"].startswith(remedy)


@pytest.mark.parametrize("mask", [[True], [2, 0], ["1", 0], 1])
def test_a_wrong_mask_is_named(client: TestClient, mask: Any) -> None:
    refused = post(client, step("a", loss_mask=mask))
    assert refused.status_code == 422
    assert refused.json()["field"].startswith("steps[0].loss_mask")


ROWS = {"dtype": "int8", "shape": [3], "data": [1, 2, 3]}


@pytest.mark.parametrize(
    ("wrong", "field", "value", "told"),
    [
        ({"token_arrays": {"a": ROWS}}, "token_arrays['a']", "'(3,)'", "2 response_ids"),
        ({"token_arrays": {"": ROWS}}, "token_arrays", "''", "not empty"),
        ({"loss_mask": [1, 0, 1, 1]}, "loss_mask", "4", "each output token"),
    ],
)
def test_a_wrong_value_is_told_in_the_words_of_the_body(
    client: TestClient, wrong: Any, field: str, value: str, told: str
) -> None:
    refused = post(client, step("a", response_ids=[1, 2], logprobs=[-1.0, -1.0], **wrong)).json()
    assert (refused["field"], refused["value"]) == (f"steps[0].{field}", value)
    assert told in refused["remedy"]
    assert "output_tokens" not in refused["detail"]
