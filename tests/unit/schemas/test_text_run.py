"""A run of texts is what a tuple of them is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.schemas.text_run import TextRun


@given(
    texts=st.integers(0, 3).flatmap(
        lambda size: st.lists(st.text("ab", min_size=size, max_size=size), max_size=5)
    ),
    head=st.integers(1, 2),
    start=st.none() | st.integers(-6, 6),
)
def test_a_run_is_a_sequence_of_its_texts(texts: list[str], head: int, start: int | None) -> None:
    size = len(texts[0]) if texts else 0
    run = TextRun("".join("\t" * head + text for text in texts), head + size, head)
    assert len(run) == len(texts)
    assert list(run) == texts
    assert [run[at] for at in range(-len(texts), len(texts))] == [*texts, *texts]
    assert run[start:] == tuple(texts[start:])
    assert run == tuple(texts)
    assert tuple(texts) == run
    assert run != (*texts, "c")
    for at in (len(texts), -len(texts) - 1):
        with pytest.raises(IndexError):
            run[at]
