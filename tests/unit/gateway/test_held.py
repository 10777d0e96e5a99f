"""What is held of a body while it is checked, and until its call is answered."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from contextlib import suppress
from typing import Any

import httpx2
import pytest

from harness.step_writers import STEP, STEPS, MemoryStepWriter, bearer, gateway_over
from rollstream.gateway import bodies
from rollstream.gateway.bodies import CONTAINERS_MAX
from rollstream.gateway.models import StepsBody
from rollstream.gateway.problems import Refused

VALUES = 50_000
BODY_BYTES = 1024 * 1024


def with_metadata(metadata: str) -> bytes:
    return json.dumps({"steps": [{**STEP, "metadata": "@"}]}).replace('"@"', metadata).encode()


def many(value: str, count: int) -> str:
    return '{"many": [' + ",".join([value] * count) + "]}"


@pytest.mark.parametrize("value", ["{}", "[]", "0"])
def test_of_metadata_as_much_is_held_as_was_sent(value: str) -> None:
    metadata = many(value, VALUES)
    raw = with_metadata(metadata)
    tracemalloc.start()
    try:
        held = [one.step() for one in bodies.read(raw, StepsBody).steps]
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert json.loads(str(held[0].metadata)) == json.loads(metadata)
    assert size < 1.5 * len(raw)


def keys(count: int) -> str:
    return "{" + ",".join(f'"{number:x}":0' for number in range(count)) + "}"


SHORTEST = {
    **{value: many(value, BODY_BYTES // (len(value) + 1)) for value in ("null", '""', "0", "300")},
    **{value: many(value, BODY_BYTES // (len(value) + 1)) for value in ('"a"', "1e0", "1.5")},
    **{value: many(value, CONTAINERS_MAX * 2) for value in ("{}", "[]", '{"":[]}')},
    **{"[[[]]]": many("[[[]]]", CONTAINERS_MAX), '"[[{",[]': many('"[[{",[]', CONTAINERS_MAX)},
    "keys": keys(BODY_BYTES // 10),
    "nested": many("[" * 50 + "]" * 50, BODY_BYTES // 100),
    "text": '{"a":"' + "a" * BODY_BYTES + '\U0001f600"}',
}


@pytest.mark.parametrize("metadata", SHORTEST.values(), ids=SHORTEST.keys())
def test_a_body_is_checked_in_25_times_its_bytes(metadata: str) -> None:
    raw = with_metadata(metadata)
    tracemalloc.start()
    try:
        with suppress(Refused):
            assert [one.step() for one in bodies.read(raw, StepsBody).steps]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 25 * len(raw)


@pytest.mark.parametrize("text", ["[", '\\"{', "\\\\", '\\\\\\"[', "a[b{"])
def test_brackets_in_a_text_open_nothing(text: str) -> None:
    many_texts = many(f'"{text}"', 2 * CONTAINERS_MAX)
    assert len(bodies.read(with_metadata(many_texts), StepsBody).steps) == 1


@pytest.mark.parametrize("text", ["", "\\\\", '\\"', '[\\"', "{", '\\\\\\"'])
def test_objects_and_lists_between_texts_are_counted(text: str) -> None:
    """Most of them, each in front of a text, and the steps' own three arrays and objects."""
    few = many(f'[],"{text}"', CONTAINERS_MAX - 20)
    assert len(bodies.read(with_metadata(few), StepsBody).steps) == 1
    with pytest.raises(Refused, match="more than 65536 objects and lists; send fewer"):
        bodies.read(with_metadata(many(f'[],"{text}"', CONTAINERS_MAX)), StepsBody)


def client(writer: MemoryStepWriter, **gateway: Any) -> httpx2.AsyncClient:
    over = httpx2.ASGITransport(app=gateway_over(writer, **gateway))
    return httpx2.AsyncClient(transport=over, base_url="http://gateway", headers=bearer())


def test_before_a_topic_is_known_metadata_that_cannot_be_written_is_refused_and_not_held() -> None:
    async def refused() -> httpx2.Response:
        writer = MemoryStepWriter()
        writer.answering.clear()  # No broker answers whether there is a topic.
        deep = with_metadata(many("[" * 101 + "]" * 101, 1))
        headers = {"Content-Type": "application/json"}
        async with client(writer) as posting:
            return await posting.post(STEPS, content=deep, headers=headers)

    answer = asyncio.run(refused())
    assert answer.status_code == 422
    assert "nests 103 deep, and 100 is the most" in answer.json()["detail"]


def test_steps_count_as_much_as_they_take_and_one_call_alone_is_taken() -> None:
    wide = {**STEP, "metadata": {"text": "a" * 4_000 + "\U0001f600"}}

    async def statuses() -> list[int]:
        writer = MemoryStepWriter()
        bytes_max = {"max_body_bytes": 8 * 1024, "max_pending_bytes": 12 * 1024}
        bytes_max["max_pending_bytes_per_environment"] = 12 * 1024
        async with client(writer, **bytes_max) as posting:
            first = await posting.post(STEPS, json={"steps": [wide]})
            writer.answering.clear()
            each = [await posting.post(STEPS, json={"steps": [wide]}) for _ in range(2)]
            writer.answering.set()
            return [first.status_code, *(one.status_code for one in each)]

    assert asyncio.run(statuses()) == [202, 202, 429]
