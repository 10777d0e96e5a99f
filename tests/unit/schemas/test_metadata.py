"""What metadata may be: decided alike for one text and for many, and for what a producer wrote."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.metadata import DEPTH_MAX, are_metadata, check_metadata, object_text

DEEPEST = '{"x":' + "[" * (DEPTH_MAX - 1) + "]" * (DEPTH_MAX - 1) + "}"
OBJECTS = [
    "{}",
    ' {"a": 1}\n',
    '{"a":1,"a":2}',
    '{"said":"1],[2 \\u00e9 \\ud83d\\ude00 字"}',
    '{"x":123456789012345678901234567890,"y":-0.0,"z":1e-999}',
    json.dumps({"text": "[{" * 500}),
    DEEPEST,
]
OTHERS = {
    "": "Expecting value",
    "null": "another value",
    "[{}]": "another value",
    '"{}"': "another value",
    "{'a':1}": "Expecting property name",
    '{"a":1': "Expecting ',' delimiter",
    "{},{}": "Extra data",
    "1],[2": "Extra data",
    '{"a":1]},{"b":[2}': "Expecting ',' delimiter",
    '{"x":NaN}': "NaN is no finite number",
    '{"x":-Infinity}': "-Infinity is no finite number",
    '{"x":[1e999]}': "1e999 is no finite number",
    '{"x":' + "9" * 5_000 + "}": "digits",
    '{"x":"\\ud800"}': "surrogates not allowed",
    '{"\\udc00":1}': "surrogates not allowed",
    '{"x":"\t"}': "Invalid control character",
    "\ufeff{}": "Expecting value",
    DEEPEST.replace("[]", "[[]]"): f"nests {DEPTH_MAX + 1} deep, and {DEPTH_MAX} is the most",
    '{"x":' + "[" * 100_000 + "]" * 100_000 + "}": "recursion",
}
PARTS = ["{", "}", "[", "]", ",", ":", '"a"', "1", "{}", "[2]", '"b":2', "NaN", " ", "\\"]


def is_object(text: str) -> bool:
    try:
        check_metadata("metadata", text)
    except InvalidRollout:
        return False
    return True


@pytest.mark.parametrize("text", OBJECTS, ids=[text[:20] for text in OBJECTS])
def test_a_json_object_is_taken(text: str) -> None:
    check_metadata("metadata", text)


@pytest.mark.parametrize(("text", "told"), OTHERS.items(), ids=[text[:20] for text in OTHERS])
def test_anything_else_is_refused_with_its_beginning_and_the_reason(text: str, told: str) -> None:
    with pytest.raises(InvalidRollout, match=told) as refused:
        check_metadata("metadata", text)
    assert refused.value.finding.startswith(repr(text[:40]))
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("text", OTHERS, ids=[text[:20] for text in OTHERS])
def test_nothing_that_one_alone_may_not_be_passes_among_others(text: str) -> None:
    assert not are_metadata(["{}", text, '{"a":1}'])


@given(st.lists(st.lists(st.sampled_from(PARTS), max_size=9).map("".join), max_size=4))
def test_two_texts_that_are_objects_only_when_joined_are_none(texts: list[str]) -> None:
    if are_metadata(texts):
        assert all(map(is_object, texts))


def test_two_halves_are_no_two_objects() -> None:
    assert not are_metadata(['{"a":[1', '2]},{"b":2}'])
    assert not are_metadata(['{"a":1', '"b":2},{"c":3}'])


def test_keys_of_several_types_are_named_where_keys_are_sorted() -> None:
    with pytest.raises(InvalidRollout, match=r"metadata\['a'\] has the key 1; JSON has strings"):
        object_text("metadata", {"a": {1: 2, "b": 3}}, sort_keys=True)
