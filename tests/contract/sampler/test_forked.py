"""A process that is forked off the one that opened a sampler."""

from __future__ import annotations

import os

from harness.forking import told_in_a_fork
from harness.groups import GroupSpec
from harness.sampler_worlds import WITHOUT_RAY, SamplerWorld
from rollstream.sampler import SamplerView


def test_a_forked_child_is_refused_at_once_and_its_parent_goes_on(world: SamplerWorld) -> None:
    world.writer().flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(2)))
    sampler = world.open()
    step = sampler.resume(None)

    def in_a_block() -> None:
        with sampler:
            sampler.next_batch(step, 1)

    for call in (lambda: sampler.next_batch(step, 1), sampler.stats, in_a_block):
        told = told_in_a_fork(call)
        assert f"was opened in process {os.getpid()}" in told
        assert "get_context('spawn')" in told
    assert [len(sampler.next_batch(n, 1).uids) for n in (step, step + 1)] == [2, 2]


@WITHOUT_RAY
def test_a_forked_child_has_no_use_of_its_parents_view(world: SamplerWorld) -> None:
    with SamplerView(
        world.name, config=world.config, broker=world.broker(), store=world.store
    ) as view:
        before = view.stats()
        assert f"process {os.getpid()}" in told_in_a_fork(view.stats)
        assert view.stats().next_step == before.next_step
