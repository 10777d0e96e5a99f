"""Age decides whose turn it is, so that what waits is served before it is too old."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from harness.decider import LOGS, Decider
from harness.groups import GroupSpec
from rollstream.folds.batches.served import ServedBatch
from rollstream.sampler.decide.batches.next_batch import NextBatch
from rollstream.sampler.decide.trainer.commands import MarkCheckpointed, Resume
from rollstream.streams.folds.refs import ref_of

LAG_MAX = 8
GROUPS = 64
EXAMPLES = 1_000


def new_examples() -> Iterator[int]:
    return count()


def shuffled_epochs() -> Iterator[int]:
    order, shuffled = list(range(EXAMPLES)), random.Random(1)
    while True:
        shuffled.shuffle(order)
        yield from order


def examples_at_random() -> Iterator[int]:
    drawn = random.Random(1)
    while True:
        yield drawn.randrange(EXAMPLES)


def dropped_share(examples: Iterator[int], ready_groups: int) -> float:
    """Of all groups that ended, those dropped as stale where workers keep so many ready."""
    sampler = Decider(max_policy_lag=LAG_MAX, seed=3)
    for step in range(40):
        missing = ready_groups - len(sampler.state.ready)
        names = [str(next(examples)) for _ in range(missing)]
        groups = [GroupSpec(example_id=name, weight_step=step) for name in names]
        sampler.seal(*groups, log=LOGS[1 + step % 2])
        batch = sampler.choose(NextBatch(step=step, num_groups=GROUPS))
        assert isinstance(batch, ServedBatch)
        sampler.do(MarkCheckpointed(step=step))
    ended = sampler.state.outcomes.totals()
    return ended.get("stale", 0) / sum(ended.values())


@pytest.mark.proves("A13", "A15")
@pytest.mark.parametrize(
    ("stream", "lag_filled"),
    [
        (new_examples, LAG_MAX),  # As much is ready as can still be served at all.
        (shuffled_epochs, 2),
        (examples_at_random, 2),
    ],
)
def test_workers_that_keep_the_buffer_full_lose_nothing_to_staleness(
    stream: Callable[[], Iterator[int]], lag_filled: int
) -> None:
    assert dropped_share(stream(), (lag_filled + 1) * GROUPS) == 0


@pytest.mark.proves("A13")
def test_examples_with_many_old_groups_keep_no_other_waiting() -> None:
    sampler = Decider(max_policy_lag=-1)
    sampler.seal(*[GroupSpec(example_id=f"hot-{n % 8}", weight_step=0) for n in range(400)])
    made, waited, served = dict[str, int](), list[int](), Counter[str]()
    for step in range(30):
        names = [f"new-{step}-{n}" for n in range(4)]
        made |= dict.fromkeys(names, step)
        sampler.seal(*[GroupSpec(example_id=name, weight_step=step) for name in names])
        examples = sampler.examples(sampler.serve(step, 8))
        waited += [step - made.pop(name) for name in examples if name in made]
        served.update(examples)
        sampler.do(MarkCheckpointed(step=step))
    assert max(waited) <= 2
    assert min(made.values(), default=30) >= 28
    assert min(served[f"hot-{n}"] for n in range(8)) >= 10


def test_of_an_example_the_oldest_policy_is_served_first_then_what_was_sealed_first() -> None:
    sampler = Decider()
    sampler.do(Resume(checkpointed_step=2))
    sampler.seal(GroupSpec(weight_step=2), GroupSpec(weight_step=3), log=LOGS[2])
    sampler.seal(GroupSpec(split="eval"), log=LOGS[1])  # So that the next is sealed later.
    sampler.seal(GroupSpec(weight_step=2), GroupSpec(weight_step=1), log=LOGS[1])
    found = [
        (group.partition, group.offset, sampler.sealed_group(ref_of(group)).weight_step)
        for step in range(3, 7)
        for group in sampler.serve(step, 1).groups
    ]
    assert found == [(0, 1, 1), (1, 0, 2), (0, 1, 2), (1, 0, 3)]


def test_an_example_of_an_older_policy_comes_before_one_that_was_sealed_before_it() -> None:
    sampler = Decider()
    sampler.do(Resume(checkpointed_step=4))
    sampler.seal(*[GroupSpec(example_id=f"fast-{n}", weight_step=5) for n in range(3)])
    sampler.seal(GroupSpec(example_id="slow", weight_step=1))
    assert sampler.examples(sampler.serve(5, 2)) == ["slow", "fast-0"]
