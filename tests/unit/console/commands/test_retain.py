"""``rollstream retain``: what it asks for, and what it prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.beside_readers import AnsweringReaders
from harness.command_line import CommandLine
from harness.failing_blobs import PassingBlobs
from harness.rollouts import encode_record, make_entry
from rollstream.consumers import InlineExecutor, Sealer
from rollstream.consumers.retention.owner import PLAN_S
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.entropy import SystemEntropy
from rollstream.sampler import Sampler
from rollstream.store import Blobs, LocalBlobs, create_root_id, visible_files
from rollstream.streams.broker import TopicPartition
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.partitioning import partition_of
from rollstream.streams.topics.specs import specs_for

SEALED_S = 20.0


class Line(CommandLine):
    """A deployment with two sealed groups, a partition each; the sampler's batch of one of
    them is final.

    Attributes:
        answering: whether sealers run while a command reads the seal logs.
        sealers: their configuration, ``store`` what they read and write, ``sealed_s`` how long
            they run, unless they are ``killed`` before.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.answering = False
        self.sealers = self.config
        self.create_topics()
        self.store: Blobs = self.blobs
        self.sealed_s = SEALED_S
        self.killed: Callable[[], bool] = lambda: False
        for partition in range(2):
            self.publish(partition, "abcdefgh")
        self.seal()
        with Sampler(
            "trainer-a",
            config=self.config,
            broker=super().broker(),
            store=self.blobs,
            clock=self.clock,
        ) as sampler:
            sampler.next_batch(step=0, num_groups=1)
            sampler.checkpointed(0)

    def publish(self, partition: int, names: str) -> None:
        """A group, by the first of the names that lies on this partition."""
        group = next(key for key in names if partition_of(key.encode(), 2) == partition)
        entries = [
            make_entry(rollout_uid=f"{group}-{member}", group_uid=group, group_size=2)
            for member in range(2)
        ]
        value = encode_record(entries, partitions=2)
        self.logs.append(TopicPartition(self.layout.rollouts("math"), partition), None, value)

    def somebody_samples(self) -> None:
        """There is a decision log that no configuration names."""
        specs = specs_for(self.layout, {}, ["somebody"])
        admin = MemoryBroker(self.logs).admin()
        admin.create([spec for spec in specs if "somebody" in spec.name], 1.0)

    def answer(self) -> None:
        """Once."""
        if self.answering:
            self.answering = False
            self.seal()

    def broker(self) -> MemoryBroker:
        return AnsweringReaders(self.logs, self.answer) if self.answering else super().broker()

    def seal(self) -> None:
        with Sealer(
            self.sealers,
            broker=MemoryBroker(self.logs),
            store=self.store,
            clock=self.clock,
            workers=InlineExecutor(),
        ) as sealer:
            deadline = Deadline(self.sealed_s, self.clock)
            while not (deadline.passed() or self.killed()):
                sealer.step(Deadline(0.1, self.clock))


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return Line(tmp_path)


def test_a_dry_run_says_what_would_be_retired_and_what_holds_the_rest_back(line: Line) -> None:
    files = sorted(visible_files(line.blobs))
    done = line.run("retain", "--older-than", "0s", "--dry-run")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "math: 1 file, " in done.stdout
    held = (
        "1 file held back by sampler 'trainer-a' (groups ready or waiting: 1, in open batches: 0)"
    )
    assert held in done.stdout
    young = line.run("retain", "--older-than", "7d", "--dry-run")
    assert young.stdout == "math: 0 files, 0 bytes would be retired\n"
    assert sorted(visible_files(line.blobs)) == files, "nothing changes"


@pytest.mark.proves("A20")
@pytest.mark.parametrize("cap", ["--keep-groups", "--keep-groups-per-policy"])
def test_with_a_cap_the_oldest_files_beyond_it_are_retired(line: Line, cap: str) -> None:
    for publish_more in range(2):
        line.publish(0, "ijklmnop"[publish_more * 4 :])
        line.seal()
    with Sampler(
        "trainer-a", config=line.config, broker=line.broker(), store=line.blobs, clock=line.clock
    ) as sampler:
        sampler.next_batch(step=1, num_groups=3)
        sampler.checkpointed(1)
    within = line.run("retain", cap, "6", "--dry-run")
    assert within.stdout == "math: 0 files, 0 bytes would be retired\n"
    over = line.run("retain", cap, "4", "--dry-run")
    assert over.stdout.startswith("math: 1 file, ")
    assert over.stdout.endswith(" would be retired\n")
    line.answering = True
    done = line.run("retain", cap, "4")
    assert (done.exit_code, done.stdout[:14]) == (0, "math: 1 file, ")
    assert len(visible_files(line.blobs)) == 3
    assert line.run("audit").exit_code == 0


def test_a_request_says_which_files_go(line: Line) -> None:
    done = line.run("retain", "--dry-run")
    assert done.exit_code == 2
    assert "give --older-than, --keep-groups" in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.parametrize("other", ["has none", "has the id"])
def test_a_dry_run_over_another_root_is_refused(line: Line, tmp_path: Path, other: str) -> None:
    line.blobs = LocalBlobs(tmp_path / "other")
    if other == "has the id":
        create_root_id(line.blobs, SystemEntropy(), "rollstream", 1)
    done = line.run("retain", "--older-than", "0s", "--dry-run")
    assert done.exit_code == 1
    assert other in done.stderr
    assert "correct store.root" in done.stderr


def test_figures_are_json_where_that_is_asked_for(line: Line) -> None:
    done = line.run("retain", "--older-than", "0s", "--dry-run", "--json")
    (plan,) = json.loads(done.stdout)
    assert (plan["environment"], plan["files"], plan["held_files"]) == ("math", 1, 1)
    assert plan["held"] == {"trainer-a": {"open": 0, "undecided": 1}}


def test_what_the_owners_retired_is_printed_and_readers_leave_it_out(line: Line) -> None:
    line.answering = True
    done = line.run("retain", "--older-than", "0s")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("math: 1 file, ")
    assert "held back by sampler 'trainer-a'" in done.stdout
    assert len(visible_files(line.blobs)) == 1
    assert len(line.run("files").stdout.splitlines()) == 1
    assert line.run("audit").exit_code == 0


def test_files_says_that_all_were_retired(line: Line) -> None:
    with Sampler(
        "trainer-a", config=line.config, broker=line.broker(), store=line.blobs, clock=line.clock
    ) as sampler:
        sampler.next_batch(step=1, num_groups=1)
        sampler.checkpointed(1)
    line.answering = True
    line.run("retain", "--older-than", "0s")
    done = line.run("files")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "was retired" in done.stderr
    assert "nothing was sealed" not in done.stderr


def test_partitions_without_a_sealer_are_named_and_served_by_the_first(line: Line) -> None:
    done = line.run("retain", "--older-than", "0s", "--timeout", "5")
    assert done.exit_code == 1
    assert "no sealer has answered for partitions 0, 1; it is done" in done.stdout
    line.seal()
    assert len(visible_files(line.blobs)) == 1


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_sampler_that_the_configuration_does_not_name_is_a_reason_to_refuse(
    line: Line, more: list[str]
) -> None:
    line.somebody_samples()
    done = line.run("retain", "--older-than", "0s", *more)
    assert done.exit_code == 1
    assert "sampler 'somebody' has a decision log" in done.stderr
    assert "[samplers.somebody]" in done.stderr
    assert "delete the topic rollstream.sampler.somebody.1" in done.stderr


def test_a_request_that_the_sealers_refuse_fails_with_their_reason(line: Line) -> None:
    line.sealers = line.config.model_copy(update={"samplers": {}})
    line.answering = True
    done = line.run("retain", "--older-than", "0s")
    assert done.exit_code == 1
    assert "math: 0 files, 0 bytes were retired" in done.stdout
    assert "math[1]: refused: sampler 'trainer-a' has a decision log" in done.stdout
    assert len(visible_files(line.blobs)) == 2


class Slow(PassingBlobs):
    """A plan has time for one manifest alone.

    Attributes:
        stranger: whether there is a sampler that the sealers do not know, once a file was retired.
    """

    def __init__(self, line: Line) -> None:
        super().__init__(line.blobs)
        self.stranger = False
        self._line = line

    def read(self, path: str) -> bytes:
        if path.startswith("manifests/"):
            self._line.clock.advance(PLAN_S)
            if self.stranger and any(self.list("retired/")):
                self._line.somebody_samples()
        return super().read(path)


@pytest.fixture
def slow(line: Line) -> Slow:
    """Two files of partition 0, one of the other, all done with; sealers take their time."""
    line.publish(0, "ijklmnop")
    line.seal()
    with Sampler(
        "trainer-a", config=line.config, broker=line.broker(), store=line.blobs, clock=line.clock
    ) as sampler:
        sampler.next_batch(step=1, num_groups=2)
        sampler.checkpointed(1)
    line.store = slow = Slow(line)
    line.answering = True
    return slow


def test_a_request_that_stops_midway_says_what_was_retired_and_to_ask_again(
    line: Line, slow: Slow
) -> None:
    slow.stranger = True
    line.sealed_s = 20 * PLAN_S
    done = line.run("retain", "--older-than", "0s", "--timeout", "9000")
    assert done.exit_code == 1
    stopped = "math[0]: stopped after 1 file; what was retired stays so, ask again for the others: "
    assert f"{stopped}sampler 'somebody' has a decision log" in done.stdout
    assert "math[0]: refused" not in done.stdout


def test_a_cap_holds_where_there_is_time_to_count_one_flush_at_a_time(
    line: Line, slow: Slow
) -> None:
    line.sealed_s = 20 * PLAN_S
    done = line.run("retain", "--keep-groups", "2", "--timeout", "9000")
    assert (done.exit_code, done.stdout[:14]) == (0, "math: 1 file, ")
    assert len(visible_files(slow)) == 2


def test_a_request_that_is_not_done_in_time_says_how_far_it_is(line: Line, slow: Slow) -> None:
    line.sealed_s = 20 * PLAN_S
    line.killed = lambda: any(slow.list("retired/"))
    done = line.run("retain", "--older-than", "0s", "--timeout", "900")
    assert done.exit_code == 1
    assert "math[0]: 1 file so far; the sealer that owns it goes on with the others" in done.stdout
    assert "no sealer has answered for partitions 0" not in done.stdout
    line.killed = lambda: False
    line.seal()
    assert visible_files(line.blobs) == []


def test_status_names_a_sampler_for_which_nothing_is_retired(line: Line) -> None:
    assert "retire no files" not in line.run("status").stdout
    line.somebody_samples()
    done = line.run("status")
    assert "retire no files: sampler 'somebody' has a decision log" in done.stdout
    assert "add [samplers.somebody]" in done.stdout


@pytest.mark.parametrize("age", ["7", "d", "-1d", "nand", "infd", "7 weeks", ""])
def test_an_age_has_a_number_and_a_unit(line: Line, age: str) -> None:
    done = line.run("retain", f"--older-than={age}")
    assert done.exit_code == 2
    assert "is no age" in " ".join(done.stderr.replace("│", " ").split())


def test_an_environment_that_is_not_configured_is_refused(line: Line) -> None:
    done = line.run("retain", "--older-than", "7d", "--environment", "code")
    assert done.exit_code == 1
    assert "there is no [environments.code] in this configuration, which has math" in done.stderr
