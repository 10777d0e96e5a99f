"""Keys of readers' positions."""

from __future__ import annotations

from rollstream.schemas.events import is_position_of, position_key


def test_a_key_is_of_its_reader_and_partition_alone() -> None:
    key = position_key("tests", 1, "a1b2")
    assert is_position_of(key, "tests", 1)
    assert not is_position_of(key, "tests", 11)
    assert not is_position_of(position_key("tests", 11, "a1b2"), "tests", 1)
    assert not is_position_of(key, "test", 1)
    assert not is_position_of(None, "tests", 1)
