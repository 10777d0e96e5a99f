"""Ready packs on ranks that are processes: one of them is killed, and no decision changes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from harness.groups import GroupSpec
from harness.ray_world import RayWorld
from harness.source_tree import ROOT

pytest.importorskip("torch", reason="needs PyTorch: make test-torch")

from examples.grpo_torch.errors import PEER_LOST
from harness.ready_packs_rank import PEER_TIMEOUT_S, WINDOW

RANKS, STEPS = 3, 8
SAVED, KILLED = 2, 5  # The newest step in a checkpoint, and the one in whose middle a rank dies.
GROUPS = 80
# Longer than the ranks' start and their steps take, and what they wait for one another.
END_WITHIN_S = 60.0 + PEER_TIMEOUT_S
Line = dict[str, Any]


@pytest.fixture
def world(kafka_bootstrap: str, tmp_path: Path) -> Iterator[RayWorld]:
    made = RayWorld(kafka_bootstrap, tmp_path)
    yield made
    made.close()


def write_groups(world: RayWorld, first: int, count: int, version: int) -> None:
    """Of two rollouts each, of which a pack holds two or three."""
    specs = [
        GroupSpec(example_id=f"ex-{n}", weight_step=version, output=3 + n % 3)
        for n in range(first, first + count)
    ]
    world.writer().flush(*specs)
    sampler, deadline = world.open(), time.monotonic() + PEER_TIMEOUT_S
    while sampler.stats().ready_by_policy_version.get(f"step-{version}", 0) < count:
        assert time.monotonic() < deadline


def run_ranks(
    world: RayWorld, folder: Path, *, saved: int | None = None, die_at: int | None = None
) -> tuple[list[int], list[str], list[list[Line]]]:
    """All ranks of a start, up to their ends: exit codes, what each said, and its steps."""
    folder.mkdir()
    records = [folder / f"rank-{rank}.jsonl" for rank in range(RANKS)]
    with ExitStack() as processes:
        ranks = [
            processes.enter_context(_rank(world, folder, rank, saved, die_at))
            for rank in range(RANKS)
        ]
        try:
            # Each reads its own few lines, which a pipe holds; none waits for another's.
            said = [rank.communicate(timeout=END_WITHIN_S)[1] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    lines = [
        [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
        for record in records
    ]
    return [rank.returncode for rank in ranks], said, lines


def _rank(
    world: RayWorld, folder: Path, rank: int, saved: int | None, die_at: int | None
) -> subprocess.Popen[str]:
    arguments: dict[str, object] = {
        "config": world.config_file(),
        "sampler": world.name,
        "meeting-point": folder / "meeting",
        "record": folder / f"rank-{rank}.jsonl",
        "rank": rank,
        "ranks": RANKS,
        "steps": STEPS,
        "save-at": SAVED,
    }
    if saved is not None:
        arguments["saved"] = saved
    if die_at is not None and rank == RANKS - 1:
        arguments["die-at"] = die_at
    flags = [str(part) for name, v in arguments.items() for part in (f"--{name}", v)]
    path = os.pathsep.join((str(ROOT / "tests"), str(ROOT), *sys.path))
    return subprocess.Popen(
        [sys.executable, "-m", "harness.ready_packs_rank", *flags],
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": path,
            "GLOO_SOCKET_IFNAME": "lo",  # Not whatever the host's name stands for.
            "OMP_NUM_THREADS": "1",
        },
    )


def common(line: Line) -> Line:
    """What every rank decides alike."""
    return {name: value for name, value in line.items() if name != "packs"}


@pytest.mark.broker
@pytest.mark.timeout(300)
@pytest.mark.proves("C1", "C3", "C7", "C8", "I6")
def test_a_rank_that_is_killed_in_a_window_ends_the_others_and_the_resumed_run_decides_the_same(
    world: RayWorld, tmp_path: Path
) -> None:
    write_groups(world, 0, GROUPS, version=0)
    codes, said, before = run_ranks(world, tmp_path / "first", die_at=KILLED)
    assert codes == [PEER_LOST, PEER_LOST, -signal.SIGKILL]
    for rank in range(RANKS - 1):
        assert f"rank {rank} waited for the gradients of step {KILLED}, and another" in said[rank]
    assert [len(of_rank) for of_rank in before] == [KILLED + 1, KILLED + 1, KILLED]
    write_groups(world, GROUPS, 8, version=2)  # What came since changes no step of before.
    codes, said, after = run_ranks(world, tmp_path / "second", saved=SAVED)
    assert codes == [0] * RANKS, said
    for rank in range(RANKS):
        again = after[rank][: len(before[rank]) - SAVED - 1]
        assert again == before[rank][SAVED + 1 :]
        assert [line["step"] for line in after[rank]] == [*range(SAVED + 1, STEPS)]
    assert_ranks_agree(before)
    assert_ranks_agree(after)
    kinds = {line["step"]: line["channel"] for line in [*before[0], *after[0]]}
    assert [kinds[step] for step in range(STEPS)] == ["ChannelA", "ChannelB"] * (STEPS // 2)


def assert_ranks_agree(ranks: Sequence[Sequence[Line]]) -> None:
    """One decision a step, of as many forward passes, on packs that no two ranks have."""
    for of_step in zip(*ranks, strict=False):
        assert [common(line) for line in of_step] == [common(of_step[0])] * RANKS
        on_b = of_step[0]["channel"] == "ChannelB"
        assert {line["forwards"] for line in of_step} == {WINDOW if on_b else 1}
        assert len({line["packs"] for line in of_step if on_b}) == RANKS * on_b
