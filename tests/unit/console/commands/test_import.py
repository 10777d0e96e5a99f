"""``rollstream import``: old batches become groups that samplers are served."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import Result

from harness.beside_readers import AnsweringReaders
from harness.command_line import CONFIG, CommandLine
from harness.source_tree import ROOT
from rollstream.consumers import InlineExecutor, Sealer
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Sampler
from rollstream.store import open_dataset, visible_files
from rollstream.streams.memory import MemoryBroker

GOLDEN = str(ROOT / "tests" / "golden" / "old_batches.v1.jsonl")
SEALED_S = 10.0


class Line(CommandLine):
    """A deployment whose sealers run whenever a command begins to read seal logs.

    Attributes:
        root: of the store.
        answers: whether they do.
    """

    answers = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, f"{CONFIG}max_policy_lag = -1\n")
        self.root = folder / "store"
        self.create_topics()

    def run(self, *arguments: str, columns: str = "160") -> Result:
        self.answers = True
        try:
            return super().run(*arguments, columns=columns)
        finally:
            self.answers = False

    def broker(self) -> MemoryBroker:
        return AnsweringReaders(self.logs, self.seal) if self.answers else super().broker()

    def seal(self) -> None:
        with Sealer(
            self.config,
            broker=MemoryBroker(self.logs),
            store=self.blobs,
            clock=self.clock,
            workers=InlineExecutor(),
        ) as sealer:
            deadline = Deadline(SEALED_S, self.clock)
            while not deadline.passed():
                sealer.step(Deadline(0.1, self.clock))


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return Line(tmp_path)


@pytest.mark.proves("E5")
def test_old_batches_are_imported_once_and_served_with_metadata_of_their_own(line: Line) -> None:
    done = line.run("import", GOLDEN, "--environment", "math")
    assert (done.exit_code, done.stdout) == (0, "imported 3 groups, skipped 0\n"), done.output
    assert line.run("audit").exit_code == 0
    rows = open_dataset(line.root).to_table(
        ["worker_id", "replica_id", "created_ts", "weight_step"]
    )
    found = sorted(tuple(row.values()) for row in rows.to_pylist())
    first, second = (datetime.fromtimestamp(at, UTC) for at in (1718000000.25, 1718000060))
    assert found == [
        ("worker-3", "worker-3", first, 39),
        ("worker-3", "worker-3", first, 40),
        ("worker-3", "worker-3", first, 40),
        ("worker-4", "replica-1", second, 41),
        ("worker-4", "worker-4", second, 41),
    ]
    with Sampler(
        "trainer-a", config=line.config, broker=line.broker(), store=line.blobs, clock=line.clock
    ) as sampler:
        batch = sampler.next_batch(step=0, num_groups=1)
    assert sorted(uid[-2:] for uid in batch.uids) == ["-0", "-1"]
    again = line.run("import", GOLDEN, "--environment", "math", "--json")
    told = json.loads(again.stdout)
    assert (told["imported"], told["skipped"]) == (0, 3)


def test_a_batch_that_breaks_a_rule_ends_it_with_the_reason(line: Line) -> None:
    done = line.run("import", GOLDEN)
    assert done.exit_code == 1
    assert "old_batches.v1.jsonl, line 2: rollouts[0].environment is missing" in done.stderr


def test_files_that_are_not_there_are_named_before_anything_is_asked(line: Line) -> None:
    done = line.run("import", GOLDEN, "absent.jsonl", "--environment", "math")
    assert done.exit_code == 2
    assert "'absent.jsonl' does not exist" in done.stderr
    assert visible_files(line.blobs) == []
