"""The demo's tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from examples.demo.tokens import ANSWER_SIZE, END, VOCABULARY, decode, encode


@given(st.text(alphabet="0123456789,", max_size=12))
def test_digits_and_commas_come_back_from_their_tokens(text: str) -> None:
    assert decode(encode(text)) == text


@given(st.text(max_size=80))
def test_any_text_encodes_to_tokens_of_the_vocabulary(text: str) -> None:
    tokens = encode(text)
    assert all(END < token < len(VOCABULARY) for token in tokens)


def test_question_keeps_its_task_and_numbers_and_nothing_else() -> None:
    question = "Find the Greatest Common Divisor (GCD) of these numbers: 49, 8. Give only the GCD."
    assert decode(encode(question)) == "divisor 49,8"


def test_end_is_no_text_and_answers_use_the_first_ids_only() -> None:
    answer = encode("1234567890")
    assert answer.max() < ANSWER_SIZE
    assert decode([*answer, END]) == "1234567890"
