"""Which groups are taken: as a plain set has them, and of a long run its bounds alone."""

from __future__ import annotations

import gc
import pickle
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.examples import examples
from rollstream.folds.life.taken import TakenGroups
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.refs import GroupRef

LOG = PartitionAddress("math", 1, 0)


@given(sizes=st.lists(st.integers(0, 3), max_size=8), gap=st.integers(1, 3), data=st.data())
@settings(max_examples=examples(200))
def test_groups_are_taken_whatever_is_applied_when(
    sizes: list[int], gap: int, data: st.DataObject
) -> None:
    """Each group may be taken, released and ended before its flush is applied and after."""
    flushes = [(gap * place, size) for place, size in enumerate(sizes)]
    refs = [GroupRef(*LOG, offset, index) for offset, size in flushes for index in range(size)]
    taken, other = TakenGroups(), TakenGroups()
    expected, ended = set[GroupRef](), set[GroupRef]()
    applied = 0
    kinds = st.sampled_from(["add", "add", "end", "end", "remove"])
    changes = st.lists(st.tuples(kinds, st.sampled_from(refs or [GroupRef(*LOG, 0, 0)])))
    for change, ref in data.draw(changes) if refs else ():
        arrives: bool = data.draw(st.booleans())
        if flushes and arrives:
            offset, size = flushes.pop(0)
            taken.apply(LOG, applied, offset, size)
            applied = offset + 1
        match change:
            case "add":
                assert bool(taken.add(LOG, [ref])) == (ref not in expected)
                expected.add(ref)
            case "end" if ref in expected:
                taken.end(LOG, [ref])
                ended.add(ref)
            case "remove" if ref not in ended:
                assert taken.remove(ref) == (ref in expected)
                expected.discard(ref)
        assert {one for one in refs if one in taken} == expected
        masks = {ref: taken.of_flush(LOG, ref.offset) for ref in refs}
        assert {ref for ref, (of, _) in masks.items() if of >> ref[4] & 1} == expected
        assert {ref for ref, (_, left) in masks.items() if not left >> ref[4] & 1} == ended
    for offset, size in flushes:
        taken.apply(LOG, applied, offset, size)
        applied = offset + 1
    assert {one for one in refs if one in taken} == expected
    # The decisions first, or the flushes: the same.
    for ref in sorted(expected):
        other.add(LOG, [ref])
    applied = 0
    for offset, size in ((gap * place, size) for place, size in enumerate(sizes)):
        other.apply(LOG, applied, offset, size)
        applied = offset + 1
    for ref in sorted(ended, reverse=True):
        other.end(LOG, [ref])
    assert {one for one in refs if one in other} == expected
    if refs and expected:
        assert repr(other.sorted_items()) == repr(taken.sorted_items())


def test_flushes_whose_groups_have_all_ended_take_no_memory() -> None:
    taken, sizes = TakenGroups(), list[int]()
    for offset in range(2_000):
        for index in range(8):
            ref = GroupRef(*LOG, offset, index)
            taken.add(LOG, [ref])
            if (offset, index) != (7, 7):
                taken.end(LOG, [ref])
        taken.apply(LOG, offset, offset, 8)
        sizes.append(len(pickle.dumps(taken)))
    assert sizes[-1] < sizes[9] + 32
    assert taken.of_flush(LOG, 3) == (-1, 0)
    assert not taken.remove(GroupRef(*LOG, 3, 7)), "it ended"
    assert taken.remove(GroupRef(*LOG, 7, 7))
    assert GroupRef(*LOG, 7, 7) not in taken
    assert GroupRef(*LOG, 2_000, 0) not in taken


def test_flushes_that_are_never_applied_take_little_once_their_groups_have_ended() -> None:
    """As retention folds decisions: how many groups a flush has is not known."""
    taken, flushes = TakenGroups(), 5_000
    tracemalloc.start()
    try:
        for offset in range(flushes):
            refs = [GroupRef(*LOG, offset, index) for index in range(8)]
            assert taken.add(LOG, refs) == refs
            for ref in refs:
                taken.end(LOG, [ref])
        gc.collect()
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes / flushes < 80, "with 2,048 tuples of the newest"
    assert GroupRef(*LOG, 7, 7) in taken
    assert GroupRef(*LOG, 7, 8) not in taken
    assert not taken.remove(GroupRef(*LOG, 7, 7)), "it ended"
    assert taken.add(LOG, [GroupRef(*LOG, 7, 8)])
    assert taken.remove(GroupRef(*LOG, 7, 8)), "that one did not"


def test_groups_from_before_the_start_are_counted() -> None:
    taken = TakenGroups()
    for offset, index in ((3, 0), (3, 2), (4, 1), (5, 0)):
        taken.add(LOG, [GroupRef(*LOG, offset, index)])
        taken.end(LOG, [GroupRef(*LOG, offset, index)])
    taken.apply(LOG, 5, 5, 1)
    assert taken.count_before(LOG, 5) == 3
