from __future__ import annotations

import gc

import pytest

from rollstream.runtime.collection import without_collection


def test_nothing_collects_in_the_block_and_it_does_again_after_a_failure() -> None:
    with without_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError):
        _fail_within()
    assert gc.isenabled()


def _fail_within() -> None:
    with without_collection():
        raise KeyError


def test_a_collector_that_was_disabled_before_stays_so() -> None:
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
