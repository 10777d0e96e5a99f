"""Rollouts whose files were deleted are still traced, from the logs."""

from __future__ import annotations

import pytest

from harness.retention import NAME, RetentionWorld
from rollstream.sampler.history import lineage_of_rollout, lineage_of_step
from rollstream.streams.tracing import RETIRED, SEALED


@pytest.mark.proves("F2")
def test_lineage_says_which_files_were_retired_and_leads_to_them_all_the_same() -> None:
    world = RetentionWorld()
    uids = world.seal_groups(0, 4)
    sampler = world.sampler()
    batch = sampler.next_batch(step=0, num_groups=2)
    sampler.checkpointed(0)
    world.ask()
    with world.leaving(world.sealer()) as sealer:
        world.retain(sealer, sampler=sampler)
    assert world.retired_files() == world.paths_of(batch)
    for uid in uids:
        (found,) = lineage_of_rollout(uid, config=world.config, broker=world.new_broker())
        (entry,) = found.entries
        assert entry.state == SEALED
        assert entry.detail == (RETIRED if uid in batch.uids else "")
    made_of = lineage_of_step(NAME, 0, config=world.config, broker=world.broker)
    traced = [row.rollout_uid for one in made_of.groups for row in one.origin.segments]
    assert traced == list(batch.uids)
    sampler.close()
