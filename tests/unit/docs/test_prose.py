"""How the length of pages and sentences is counted."""

from __future__ import annotations

import pytest

from harness.prose import (
    GUIDE_WORDS_MAX,
    LONG_SENTENCE_WORDS,
    broken_bounds,
    measured,
    pages,
)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One two three. Four five.", [3, 2]),
        ("A [link of four words](page.md#anchor) ends.", [6]),
        ("See `a.b(c, d)` for it. Then `x.` ends.", [4, 3]),
        ("# A heading\n\nText that is counted, once.", [5]),
        ("- An item\n  on two lines.\n- Another one.", [5, 2]),
        ("Before.\n\n```python\nx = 1  # Not counted.\n```\n\nAfter.", [1, 1]),
        ("Versions 3.11 to 3.13 work.", [5]),
    ],
)
def test_sentences_are_those_of_paragraphs_and_lists(text: str, sentences: list[int]) -> None:
    assert measured(text).words == sum(sentences)
    assert measured(f"{text}\n\nThis one is long enough to be counted here.").sentences[-1] == 9


def test_a_cell_counts_as_a_sentence_if_it_is_one() -> None:
    text = "| a | b |\n|---|---|\n| `key` | it has as many words as a short sentence has |"
    assert measured(text).sentences == [10]
    assert measured(text).words == 13


def test_a_guide_that_is_too_long_breaks_a_bound() -> None:
    (line,) = broken_bounds({"docs/guides/x.md": "Word. " * (GUIDE_WORDS_MAX + 1)})
    assert line.startswith("docs/guides/x.md: 1201 words")


def test_long_sentences_break_a_bound() -> None:
    long = " ".join(["word"] * (LONG_SENTENCE_WORDS + 1))
    lines = broken_bounds({"README.md": f"{long}. " + "Short ones do not. " * 10})
    assert [line.partition(":")[0] for line in lines] == ["README and guides"]


def test_formats_and_decisions_are_not_counted() -> None:
    names = set(pages())
    assert {"README.md", "docs/index.md", "docs/guarantees.md"} <= names
    assert not {name for name in names if "decisions/" in name or "wire_format" in name}
