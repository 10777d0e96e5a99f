"""Status of groups that wait for a late reward, and of those that have it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.command_line import CommandLine
from harness.groups import GroupSpec, GroupWriter
from rollstream.producers import ScoreProducer
from rollstream.sampler import SamplerView

pytestmark = pytest.mark.proves("F17")
LATE = GroupSpec(rewards=(None, None))


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    made = CommandLine(tmp_path)
    made.create_topics()
    return made


def seal_late_groups(line: CommandLine, *, scored: int, waiting: int) -> None:
    """Seals groups without a reward, and scores the first of them."""
    address = line.layout.addresses({"math": 2})[1]
    where = line.layout.groups_log(address)
    writer = GroupWriter(line.broker(), where, line.blobs, environment="math")
    flushed = writer.flush(*[LATE] * (scored + waiting))
    with ScoreProducer(environment="math", scorer="tests", broker=line.broker()) as scores:
        for group in range(scored):
            for uid in flushed.segments.uids[2 * group : 2 * group + 2]:
                scores.publish(rollout_uid=uid, reward=1.0)


@pytest.mark.parametrize("options", [("--json",), ("--json", "--watch")], ids=" ".join)
def test_groups_that_wait_for_a_reward_are_counted_as_json(
    line: CommandLine, options: tuple[str, ...]
) -> None:
    seal_late_groups(line, scored=0, waiting=2)
    line.stopping.set()
    done = line.run("status", *options)
    (sampler,) = json.loads(done.stdout)["samplers"]
    assert (sampler["ready"], sampler["waiting"]) == (0, {"reward": 2})


@pytest.mark.proves("A18")
def test_status_and_sampler_agree_about_groups_that_were_scored(line: CommandLine) -> None:
    seal_late_groups(line, scored=3, waiting=1)
    (sampler,) = json.loads(line.run("status", "--json").stdout)["samplers"]
    with SamplerView(
        "trainer-a", config=line.config, broker=line.broker(), store=line.blobs
    ) as view:
        stats = view.stats()
    assert sampler["ready"] == sum(stats.ready.values()) == 3
    assert sampler["waiting"] == {"reward": stats.waiting} == {"reward": 1}
