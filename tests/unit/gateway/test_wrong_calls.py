"""Each wrong call is answered with what was wrong, where, the value, and what to do."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from harness.producers import new_layout
from harness.step_writers import COMPLETE, STEP, STEPS, bearer, gateway_over
from rollstream.gateway.models import STEPS_MAX
from rollstream.producers import AsyncStepProducer
from rollstream.streams.memory import MemoryBroker

JSON = {"Content-Type": "application/json"}
WORDS_OF_OTHERS = ("Input should", "pydantic", "msgspec", "Expected `", "ensure this", "List ")
LONG = "n" * 5_000
TOKENS = "give a list of whole numbers from 0 to 2147483647"
TOKEN = "give a whole number from 0 to 2147483647"
LOGPROB = "give a finite number from -10000 to 0.001"
NAME = "give a text of 1 to 4096 characters"


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    """Of a gateway over a log in memory, and a writer that checks what it is given."""
    broker = MemoryBroker()
    layout = new_layout(broker, "math")
    writer = AsyncStepProducer(broker=broker, namespace=layout.namespace)
    app = gateway_over(writer, max_body_bytes=65_536)
    with TestClient(app, headers=bearer()) as client:
        yield client


def packed(raw: bytes, dtype: str = "int32") -> dict[str, str]:
    return {"dtype": dtype, "base64": base64.b64encode(raw).decode()}


def problem(answer: Any, status: int) -> dict[str, Any]:
    """What every problem has, whatever it is about."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert found["detail"].endswith(f"; {found['remedy']}")
    assert len(found["detail"]) < 1_500
    assert len(found.get("value", "")) <= 201
    assert not any(words in answer.text for words in WORDS_OF_OTHERS)
    return found


def fields(found: dict[str, Any]) -> tuple[str, str]:
    return found["field"], found["value"]


WRONG_VALUES: list[tuple[str, Any, str, str, str]] = [
    ("prompt_ids", [1, -2], "prompt_ids[1]", "-2", TOKEN),
    ("prompt_ids", [1, 2.0], "prompt_ids[1]", "2.0", TOKEN),
    ("prompt_ids", [[1]], "prompt_ids[0]", "a list of 1", TOKEN),
    ("prompt_ids", None, "prompt_ids", "null", TOKENS),
    ("prompt_ids", "AAAA", "prompt_ids", "'AAAA'", TOKENS),
    ("prompt_ids", {}, "prompt_ids.dtype", "", 'give "int32"'),
    ("prompt_ids", {"dtype": {}}, "prompt_ids.dtype", "an object of 0", 'give "int32"'),
    ("prompt_ids", packed(b"1234", "int64"), "prompt_ids.dtype", "'int64'", 'give "int32"'),
    ("prompt_ids", packed(b"12345"), "prompt_ids.base64", "5", "give 4 for each value"),
    ("prompt_ids", packed(b"\0\0\0\xff"), "prompt_ids[0]", "-16777216", "not negative"),
    ("prompt_ids", packed(b"\0\0\0\x65"), "prompt_ids[0]", "1694498816", "little-endian"),
    ("prompt_ids", {**packed(b""), "shape": [0]}, "prompt_ids.shape", "a list of 1", "base64"),
    ("response_ids", [2**31], "response_ids[0]", str(2**31), TOKEN),
    ("response_ids", [10**400], "response_ids[0]", "1000", TOKEN),
    ("response_ids", ["4"], "response_ids[0]", "'4'", TOKEN),
    ("response_ids", [True], "response_ids[0]", "true", TOKEN),
    ("response_ids", [None], "response_ids[0]", "null", TOKEN),
    ("response_ids", {"dtype": "int32", "base64": "AA*="}, "response_ids.base64", "'AA*='", "4648"),
    ("logprobs", [0.5], "logprobs[0]", "0.5", LOGPROB),
    ("logprobs", [-1e39], "logprobs[0]", "-1e+39", LOGPROB),
    ("logprobs", ["-1"], "logprobs[0]", "'-1'", LOGPROB),
    ("logprobs", [-1.0], "logprobs", "1", "give one for each"),
    ("logprobs", packed(b"\xbf\0\0\0" * 2, "float32"), "logprobs[0]", "2.67", "little-endian"),
    ("logprobs", [-0.5, -1e30], "logprobs[1]", "-1e+30", LOGPROB),
    ("logprobs", packed(b"1234"), "logprobs.dtype", "'int32'", 'give "float32"'),
    (
        "logprobs",
        packed(b"\0\0\0\0\0\0\xc0\x7f", "float32"),
        "logprobs[1]",
        "nan",
        "must be finite",
    ),
    ("logprobs", packed(b"\0\0\0\0\0\0\0\x3f", "float32"), "logprobs[1]", "0.5", "log"),
    ("reward", "1", "reward", "'1'", "give a finite number"),
    ("reward", 1e308, "reward", "1e+308", "from -3.4028235e+38 to 3.4028235e+38"),
    ("reward", True, "reward", "true", "give a finite number"),
    ("trajectory_uid", "", "trajectory_uid", "''", NAME),
    ("trajectory_uid", 7, "trajectory_uid", "7", NAME),
    ("trajectory_uid", LONG, "trajectory_uid", "'nnn", NAME),
    ("trajectory_uid", "t\n1", "trajectory_uid", r"'t\n1'", "without line breaks"),
    ("prompt_uid", "p\x00", "prompt_uid", r"'p\x00'", "without line breaks"),
    ("prompt_uid", None, "prompt_uid", "null", NAME),
    ("step_index", -1, "step_index", "-1", "give a whole number from 0"),
    ("step_index", "0", "step_index", "'0'", "give a whole number from 0"),
    ("policy_version", "", "policy_version", "''", "give a text of 1 to"),
    ("policy_version", "é" * 200, "policy_version", "'éé", "at most"),
    ("weight_step", 1.5, "weight_step", "1.5", "give a whole number from -1"),
    ("weight_step", -2, "weight_step", "-2", "give a whole number from -1"),
    ("is_last", 1, "is_last", "1", "give true or false"),
    ("n_rollouts", 0, "n_rollouts", "0", "give a whole number from 1"),
    ("n_rollouts", 65_537, "n_rollouts", "65537", "give a whole number from 1 to 65536"),
    ("metadata", [1], "metadata", "a list of 1", "give an object"),
    ("policy_epoch", -1, "policy_epoch", "-1", "give a whole number from 0"),
    ("lineage", LONG, "lineage", "'nnn", "give a text of at most 4096 characters"),
    ("example_id", {"a": 1}, "example_id", "an object of 1", "give a text of at most"),
    ("surprise", 1, "surprise", "1", "leave it out, or correct its name: prompt_ids, response_ids"),
    (LONG, 1, "nnn", "1", "leave it out"),
]


@pytest.mark.parametrize(("field", "value", "where", "shown", "remedy"), WRONG_VALUES)
def test_a_wrong_value_of_a_step_is_named_with_a_remedy(
    client: TestClient, field: str, value: object, where: str, shown: str, remedy: str
) -> None:
    answer = client.post(STEPS, json={"steps": [STEP, {**STEP, "step_index": 1, field: value}]})
    found = problem(answer, 422)
    assert found["field"].startswith(f"steps[1].{where}")
    assert found.get("value", "").startswith(shown)
    assert remedy in found["remedy"]
    assert found["field"].removeprefix("steps[1].") in found["detail"]


def test_a_step_without_any_token_is_refused(client: TestClient) -> None:
    empty = {**STEP, "step_index": 1, "prompt_ids": [], "response_ids": [], "logprobs": None}
    found = problem(client.post(STEPS, json={"steps": [STEP, empty]}), 422)
    assert found["field"] == "steps[1].prompt_ids"
    assert "give the context that the policy saw" in found["remedy"]


def kinds(schema: Any, whole: dict[str, Any]) -> set[str]:
    """The types of JSON that a schema allows."""
    if "$ref" in schema:
        return kinds(whole[schema["$ref"].rpartition("/")[2]], whole)
    if "anyOf" in schema:
        return {kind for one in schema["anyOf"] for kind in kinds(one, whole)}
    return {schema.get("type", "string")}


def test_every_value_of_another_type_is_named_with_what_to_give(client: TestClient) -> None:
    """Each field of a step once, with a value of each type of JSON that it does not take."""
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    values = {"array": [[]], "object": {"x": []}, "string": "x", "number": 0.5, "boolean": True}
    for name, schema in schemas["StepBody"]["properties"].items():
        for kind in values.keys() - kinds(schema, schemas):
            answer = client.post(STEPS, json={"steps": [{**STEP, name: values[kind]}]})
            found = problem(answer, 422)
            assert found["field"].startswith(f"steps[0].{name}")
            assert found["remedy"].startswith("give ")


@pytest.mark.parametrize("name", ["prompt_ids", "response_ids", "trajectory_uid", "policy_version"])
def test_what_is_missing_is_named(client: TestClient, name: str) -> None:
    step = {key: value for key, value in STEP.items() if key != name}
    found = problem(client.post(STEPS, json={"steps": [step]}), 422)
    assert found["field"] == f"steps[0].{name}"
    assert found["remedy"].startswith("give ")
    assert "is missing" in found["detail"]


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        (b"", 400, "the body is no JSON"),
        (b'{"steps": [', 400, "the body is no JSON"),
        (b'{"steps": "\xff"}', 400, "the body is no JSON"),
        (b"[" * 60_000, 400, "too many objects or lists in each other"),
        (b'{"steps": [{"metadata": ' + b'{"a":' * 5_000 + b"}" * 5_001 + b"]}", 400, "too many"),
        (b'{"steps": [{"reward": NaN}]}', 400, "the body is no JSON"),
        (b'{"steps": [-Infinity]}', 400, "the body is no JSON"),
        (b'{"steps": [{"prompt_uid": "\\ud800"}]}', 422, r"prompt_uid is '\ud800'; give a text of"),
        (b'\xef\xbb\xbf{"steps": []}', 400, "the body is no JSON"),
        (b'{"steps": []} {}', 400, "the body is no JSON"),
        (b"[]", 422, 'the body is a list of 0; give an object: {"steps": …}'),
        (b"{}", 422, "steps is missing; give a list of 1 to 1024 objects"),
        (b'{"steps": []}', 422, "steps is a list of 0; give a list of 1 to 1024 objects"),
        (b'{"steps": {}}', 422, "steps is an object of 0; give a list of 1 to 1024 objects"),
        (b'{"steps": [7]}', 422, "steps[0] is 7; give an object"),
        (b'{"steps": [{}]}', 422, "steps[0].prompt_ids is missing; give a list of whole"),
        (b'{"more": 1, "steps": []}', 422, "more is 1; leave it out, or correct its name: steps"),
        (b'{"x - at `$.y": 1}', 422, "x - at `$.y is 1; leave it out, or correct its name: steps"),
        (b'{"a` - at `$.steps": 1}', 422, "a` - at `$.steps is 1; leave it out"),
        (b'{"steps": [{"x` - at `$.y": 1}]}', 422, "steps[0].x` - at `$.y is 1; leave it out"),
        (b'{"steps": [{"reward": 1e999}]}', 422, "steps[0].reward is a number that is too large"),
        (b'{"steps": [{"reward": ' + b"1" * 5_000 + b"}]}", 422, "too large; give a finite number"),
        (
            b'{"steps": [{"metadata": {"a": [1e999]}}]}',
            422,
            "steps[0].metadata.a[0] is a number that",
        ),
    ],
)
def test_a_body_that_is_no_list_of_steps_is_refused(
    client: TestClient, body: bytes, status: int, detail: str
) -> None:
    found = problem(client.post(STEPS, content=body, headers=JSON), status)
    assert detail in found["detail"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"reward": 7}, "steps[1].reward"),
        ({"logprobs": [-1, 7]}, "steps[1].logprobs[1]"),
        ({"prompt_ids": [7]}, "steps[1].prompt_ids[0]"),
        ({"metadata": {"score": [7]}}, "steps[1].metadata.score[0]"),
    ],
)
def test_a_number_that_is_not_finite_is_named_as_what_no_json_has(
    client: TestClient, number: str, changed: dict[str, object], field: str | None
) -> None:
    step = {name: one for name, one in STEP.items() if name not in changed}
    text = json.dumps({"steps": [STEP, {**changed, **step}]})
    body = f"{number}]".join(text.rsplit("7]", 1)) if "7]" in text else text.replace("7", number)
    found = problem(client.post(STEPS, content=body, headers=JSON), 400)
    assert (found.get("field"), found["value"]) == (field, number)
    assert "no NaN and no Infinity" in found["remedy"]
    assert "null" in found["remedy"]


def test_more_steps_than_a_call_may_have_are_refused(client: TestClient) -> None:
    small = {**STEP, "prompt_ids": [], "response_ids": []}
    app_client = json.dumps({"steps": [small] * (STEPS_MAX + 1)}, separators=(",", ":"))
    assert len(app_client) > 65_536
    found = problem(client.post(STEPS, content=app_client, headers=JSON), 413)
    assert found["field"] == "the body"


@pytest.mark.parametrize(
    ("body", "field", "value", "remedy"),
    [
        ({}, "prompt_uid", None, NAME),
        ({"prompt_uid": ""}, "prompt_uid", "''", NAME),
        ({"prompt_uid": "p", "steps": 0}, "steps", "0", "give a whole number from 1"),
        ({"prompt_uid": "p", "steps": "3"}, "steps", "'3'", "give a whole number from 1"),
        ({"prompt_uid": "p", "step": 3}, "step", "3", "leave it out, or correct its name: prompt"),
        ([], "the body", "a list of 0", "give an object"),
    ],
)
def test_a_wrong_end_is_named_with_a_remedy(
    client: TestClient, body: object, field: str, value: str | None, remedy: str
) -> None:
    found = problem(client.post(COMPLETE, json=body), 422)
    assert (found["field"], found.get("value")) == (field, value)
    assert found["remedy"].startswith(remedy)


def test_a_wrong_uid_in_the_path_is_named(client: TestClient) -> None:
    path = COMPLETE.replace("t-1", LONG)
    found = problem(client.post(path, json={"prompt_uid": "p"}), 422)
    assert fields(found)[0] == "trajectory_uid"


@pytest.mark.parametrize(
    ("query", "field", "value", "remedy"),
    [
        ("durabel=true", "durabel", "'true'", "leave it out, or correct its name"),
        ("durable=true&x=", "x", "''", "leave it out, or correct its name"),
        ("durable=true&durable=false", "durable", "2 values", "give it once"),
        (f"{LONG}=1", "nnn", "'1'", "leave it out"),
        ("durable=perhaps", "durable", "'perhaps'", "give true or false"),
        ("durable=", "durable", "''", "give true or false"),
    ],
)
@pytest.mark.parametrize(
    ("path", "body"), [(STEPS, {"steps": [STEP]}), (COMPLETE, {"prompt_uid": "p-1"})]
)
def test_a_wrong_query_is_named_with_a_remedy(
    client: TestClient, path: str, body: object, query: str, field: str, value: str, remedy: str
) -> None:
    found = problem(client.post(f"{path}?{query}", json=body), 400)
    assert found["field"].startswith(field)
    assert found["value"] == value
    assert found["remedy"].startswith(remedy)


@pytest.mark.parametrize(
    ("headers", "field", "value"),
    [
        ({}, "Content-Type", "''"),
        ({"Content-Type": "text/plain"}, "Content-Type", "'text/plain'"),
        ({**JSON, "Content-Encoding": "gzip"}, "Content-Encoding", "'gzip'"),
    ],
)
def test_only_plain_json_is_read(
    client: TestClient, headers: dict[str, str], field: str, value: str
) -> None:
    found = problem(client.post(STEPS, content=b"{}", headers=headers), 415)
    assert fields(found) == (field, value)


def test_what_is_not_there_is_a_problem_too(client: TestClient) -> None:
    assert fields(problem(client.get("/v2"), 404)) == ("path", "'/v2'")
    assert fields(problem(client.get(STEPS), 405)) == ("path", f"'{STEPS}'")
