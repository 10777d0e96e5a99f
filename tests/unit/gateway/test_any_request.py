"""Whatever is sent: the answer is one that the OpenAPI page names, and no defect."""

from __future__ import annotations

import base64
import re
from math import prod
from typing import Any

import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from starlette.testclient import TestClient

from harness.step_writers import COMPLETE, STEPS, MemoryStepWriter, bearer, gateway_over

APP = gateway_over(MemoryStepWriter())
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP)
POSTS = [
    "/v1/environments/{environment}/steps",
    "/v1/environments/{environment}/trajectories/{trajectory_uid}/complete",
]
# What a JSON Schema cannot refuse, and the gateway does: an integer that is written 1.0, base64
# whose bytes are a token id or a log-prob that no model gives, and arrays that do not fit.
WHOLE = re.compile(r"-?\d+(\.0|e\+\d+)")
NO_MODEL = "no model gives that: base64"
OF_ARRAY = re.compile(r"steps\[(\d+)\]\.token_arrays\b")
# What is made of a schema is filtered much.
SETTINGS = settings(
    max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def cases(path: str, mode: GenerationMode) -> st.SearchStrategy[Any]:
    """Requests to a route, in its schema or outside of it."""
    return SCHEMA[path]["POST"].as_strategy(generation_mode=mode)


def answered(case: Any) -> Any:
    """The answer, which the OpenAPI page names: status, media type, headers, and what it holds."""
    case.path_parameters["environment"] = "math"
    answer = case.call(headers=bearer())
    case.operation.validate_response(answer)
    assert answer.status_code < 500, answer.text
    return answer


def fits(array: dict[str, Any]) -> bool:
    """Whether the data of an array are as many values as its shape has, each one of its dtype."""
    dtype, data, count = np.dtype(array["dtype"]), array["data"], prod(array["shape"])
    if isinstance(data, str):
        try:
            return len(base64.b64decode(data, validate=True)) == int(count * dtype.itemsize)
        except ValueError:
            return False
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return len(data) == count and bool(np.isfinite(np.array(data, dtype)).all())
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return len(data) == count and all(bool(low <= one <= high and one % 1 == 0) for one in data)


@pytest.mark.parametrize("path", POSTS)
def test_what_the_page_allows_is_taken(path: str) -> None:
    @SETTINGS
    @given(case=cases(path, GenerationMode.POSITIVE))
    def check(case: Any) -> None:
        answer = answered(case)
        if answer.status_code == 422:
            refused = answer.json()
            if of_array := OF_ARRAY.match(refused["field"]):
                arrays = case.body["steps"][int(of_array[1])]["token_arrays"]
                assert not all(map(fits, arrays.values())), refused
            else:
                cannot = NO_MODEL in refused["detail"]
                assert cannot or WHOLE.fullmatch(refused["value"]), refused
            return
        assert answer.status_code in (200, 202), answer.text

    check()


@pytest.mark.parametrize("path", POSTS)
def test_what_the_page_does_not_allow_is_refused_and_no_defect(path: str) -> None:
    @SETTINGS
    @given(case=cases(path, GenerationMode.NEGATIVE))
    def check(case: Any) -> None:
        answered(case)

    check()


@pytest.mark.parametrize("path", [STEPS, COMPLETE])
def test_no_bytes_are_a_defect(path: str) -> None:
    client = TestClient(APP, headers=bearer())

    @SETTINGS
    @given(body=st.binary(max_size=64) | json_text())
    def check(body: bytes) -> None:
        answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 413, 422), answer.text
        assert answer.json()["detail"]

    check()


def json_text() -> st.SearchStrategy[bytes]:
    """JSON with numbers, names and depths that many parsers do not take; no valid request."""
    number = st.sampled_from(["NaN", "-Infinity", "1e999", "9" * 5_000, "-0", "1.0", "true"])
    name = st.sampled_from(['"\\ud800"', '"\\u0000"', '""', '"' + "n" * 5_000 + '"'])
    nested = st.integers(1, 300).map(lambda depth: '{"a":' * depth + "1" + "}" * depth)
    value = number | name | nested
    field = st.sampled_from(
        ["prompt_ids", "response_ids", "logprobs", "reward", "trajectory_uid", "metadata", "steps"]
    )

    def text(field: str, value: str, listed: bool) -> bytes:
        inner = f"[{value}]" if listed else value
        return f'{{"steps": [{{"{field}": {inner}}}], "prompt_uid": {value}, "x": 1}}'.encode()

    return st.builds(text, field, value, st.booleans())
