"""Commands over a broker in memory: what they print, and their exit codes."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from harness.command_line import CONFIG, CommandLine
from harness.rollouts import encode_record, encode_segment, make_entry, members
from harness.sealed_files import seal
from rollstream.console.services import specs_of
from rollstream.consumers import InlineExecutor, Sealer
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Sampler
from rollstream.store import LocalBlobs, StoreError, read_root_id, visible_files
from rollstream.streams.broker import TopicSpec
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.partitioning import partition_of

TURNS_MAX = 1000  # A sealer joins its group in a few.
COMMANDS = (
    ["topics", "create"],
    ["topics", "check"],
    ["status"],
    ["files"],
    ["seal"],
    ["audit"],
    ["deadletters", "list"],
    ["deadletters", "show", "0"],
    ["deadletters", "retry", "--all"],
    ["finish"],
    ["retain", "--older-than", "7d"],
    ["replay", "--sampler", "trainer-a", "--step", "0"],
    ["lineage", "--uid", "uid-0"],
    ["report", "--sampler", "trainer-a"],
    ["show", "--longest", "1"],
    ["without-logs", "--sampler", "trainer-a"],
)


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


@pytest.mark.parametrize("command", [*COMMANDS, ["up"]], ids=" ".join)
def test_help_has_an_example(line: CommandLine, command: list[str]) -> None:
    done = line.run(*command, "--help")
    assert done.exit_code == 0
    words = [word for word in command[:2] if not word.startswith("-")]
    assert f"Example: rollstream {' '.join(words)}" in done.stdout


def test_help_of_up_explains_when_it_reads_a_configuration(line: CommandLine) -> None:
    words = " ".join(line.run("up", "--help").stdout.replace("│", " ").split())
    assert "without it the port of kafka.bootstrap where --config is given" in words
    assert "read only if given" in words


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_error_is_one_line_on_stderr_without_traceback(
    line: CommandLine, command: list[str]
) -> None:
    line.config_file.write_text(line.config_file.read_text() + "surprise = 1\n")
    done = line.run(*command)
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"rollstream: {line.config_file}: samplers.trainer-a.surprise")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("wrong", ['root = "data/run"', 'client = { acks = "0" }'])
def test_every_command_refuses_a_configuration_alike(line: CommandLine, wrong: str) -> None:
    text = line.config_file.read_text()
    right = 'root = "file:///unused"' if "root" in wrong else 'bootstrap = "unused:9092"'
    more = "" if "root" in wrong else f"{right}\n"
    line.config_file.write_text(text.replace(right, f"{more}{wrong}"))
    said = {line.run(*command).stderr for command in COMMANDS}
    assert len(said) == 1
    (message,) = said
    assert message.startswith(f"rollstream: {line.config_file}: ")
    assert "is no root of a store" in message or "before every replica has it" in message


def test_topics_create_creates_missing_topics_once(line: CommandLine) -> None:
    names = [spec.name for spec in specs_of(line.config)]
    first = line.run("topics", "create", "--json")
    assert json.loads(first.stdout) == names
    again = line.run("topics", "create")
    assert again.stdout == f"0 created, {len(names)} existed\n"
    assert line.run("topics", "check").exit_code == 0


def test_topics_check_notes_a_sampler_without_a_bound_on_lag(tmp_path: Path) -> None:
    for limit, notes in ((8, 0), (-1, 1)):
        line = CommandLine(tmp_path, f"{CONFIG}max_policy_lag = {limit}\n")
        assert line.run("topics", "create").exit_code == 0
        done = line.run("topics", "check")
        assert done.exit_code == 0, "it is no difference"
        assert done.stdout.count("note: samplers.trainer-a.max_policy_lag is -1") == notes


def test_topics_check_warns_of_topics_that_do_not_survive_a_broker_and_exits_0(
    line: CommandLine,
) -> None:
    line.create_topics()
    line.logs.brokers = 3
    done = line.run("topics", "check")
    assert done.exit_code == 0
    assert "math.1, rollstream" in done.stdout
    assert "has replication 1, not 3: the loss of one broker loses records" in done.stdout
    (found,) = json.loads(line.run("topics", "check", "--json").stdout)
    assert (found["what"], found["warning"]) == ("replication", True)


def test_topics_check_lists_differences_and_exits_1(line: CommandLine) -> None:
    wanted = {spec.name: spec for spec in specs_of(line.config)}
    rollouts = wanted.pop(line.layout.rollouts("math"))
    wanted.pop(line.layout.sampler("trainer-a"))
    wrong = TopicSpec(rollouts.name, 5, rollouts.config)
    line.broker().admin().create([wrong, *wanted.values()], 10)
    done = line.run("topics", "check")
    assert done.exit_code == 1
    assert f"{rollouts.name} has partitions 5, not 2: configure 5 partitions" in done.stdout
    assert f"{line.layout.sampler('trainer-a')} is missing: run `rollstream topics" in done.stdout
    found = json.loads(line.run("topics", "check", "--json").stdout)
    assert [(row["topic"], row["what"]) for row in found] == [
        (rollouts.name, "partitions"),
        (line.layout.sampler("trainer-a"), "missing"),
        (f"{line.layout.groups('math')}[0]", "root"),
    ]


def test_files_of_a_root_that_is_missing_exits_1_with_the_remedy(line: CommandLine) -> None:
    done = line.run("files")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("rollstream: file:///unused is missing or no root")
    assert "correct store.root" in done.stderr
    assert not line.blobs.root.exists()


def test_files_lists_the_files_that_manifests_name(line: CommandLine) -> None:
    line.create_topics()
    assert line.run("files").stdout == ""
    assert json.loads(line.run("files", "--json").stdout) == []
    path = seal(line.blobs, members(2))
    line.blobs.create(path.replace("7-a", "8-orphan"), b"")
    assert line.run("files").stdout == f"{line.blobs.root}/{path}\n"
    assert json.loads(line.run("files", "--json").stdout) == [f"{line.blobs.root}/{path}"]


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_files_of_an_empty_root_explains_it_on_stderr(
    line: CommandLine, options: list[str]
) -> None:
    line.create_topics()
    done = line.run("files", *options)
    assert (done.exit_code, done.stdout.strip()) == (0, "[]" if options else "")
    assert "nothing was sealed there yet" in done.stderr
    assert line.config.store.root in done.stderr
    seal(line.blobs, members(2))
    assert line.run("files", *options).stderr == ""


def test_seal_without_topics_names_the_remedy(line: CommandLine) -> None:
    done = line.run("seal")
    assert done.exit_code == 1
    assert "rollstream topics create" in done.stderr
    assert "Traceback" not in done.stderr


def test_logs_and_errors_are_json_lines_if_asked_for(line: CommandLine) -> None:
    (refused,) = line.run("seal", "--log-format", "json").stderr.splitlines()
    told = json.loads(refused)
    assert told["level"] == "ERROR"
    assert "rollstream topics create" in told["message"]
    line.create_topics()
    line.stopping.set()
    done = line.run("seal", "--log-format", "json")
    sealing, *_, ended = map(json.loads, done.stderr.splitlines())
    assert sealing["message"] == "sealing math from unused:9092"
    assert (ended["logger"], ended["level"]) == ("rollstream.seal", "INFO")
    assert line.run("status", "--log-format", "json").exit_code == 0


def test_stopped_seal_exits_0(line: CommandLine) -> None:
    line.create_topics()
    line.stopping.set()
    done = line.run("seal", "--name", "sealer-x")
    assert (done.exit_code, done.exception) == (0, None)


def test_status_names_missing_topics(line: CommandLine) -> None:
    done = line.run("status")
    assert done.exit_code == 0
    assert "stuck: topics" in done.stdout
    assert "rollstream topics create" in done.stdout


def test_another_root_is_a_stuck_stage_of_status_and_a_difference_of_topics_check(
    line: CommandLine,
) -> None:
    line.create_topics()
    assert line.run("topics", "check").exit_code == 0
    line.blobs = LocalBlobs(line.config_file.parent / "mount that is missing")
    told = "file:///unused has none: correct store.root, or mount what should be there"
    done = line.run("status", "--check")
    assert done.exit_code == 2
    assert any(row.startswith("stuck: store") and told in row for row in done.stdout.splitlines())
    done = line.run("topics", "check")
    assert done.exit_code == 1
    assert told in done.stdout
    for command in ("seal", "audit"):
        done = line.run(command)
        assert (done.exit_code, done.stdout) == (1, "")
        assert told in done.stderr
    assert not line.blobs.root.exists()


def test_another_root_is_one_line_of_status_however_many_environments(tmp_path: Path) -> None:
    line = CommandLine(tmp_path, f"{CONFIG}\n[environments.code]\n[environments.chat]\n")
    line.create_topics()
    line.blobs = LocalBlobs(tmp_path / "mount that is missing")
    stuck = json.loads(line.run("status", "--json").stdout)["stuck"]
    (told,) = [verdict for verdict in stuck if verdict["stage"] == "store"]
    for environment in ("math", "code", "chat"):
        assert f"{line.layout.groups(environment)}[0]" in told["reason"]


def test_topics_create_says_which_root_it_recorded(line: CommandLine) -> None:
    done = line.run("topics", "create")
    root_id = read_root_id(line.blobs).root_id
    assert done.stdout.splitlines()[-1] == f"recorded root {root_id} (file:///unused) for math"
    assert line.run("status").exit_code == 0


@pytest.mark.proves("F17")
def test_status_follows_rollouts_down_the_stages(line: CommandLine) -> None:
    line.create_topics()
    assert "stuck: env workers – nothing was ever published" in line.run("status").stdout
    writer = line.broker().writer()
    for name in ("a", "b"):
        value = encode_segment(rollout_uid=name, group_uid="g", group_size=2)
        writer.append(line.layout.rollouts("math"), value, key=b"g")
    assert writer.flush(10) == 0
    done = line.run("status")
    assert "stuck: sealers – 2 records of math[" in done.stdout
    assert "run `rollstream seal`" in done.stdout
    found = json.loads(line.run("status", "--json").stdout)
    assert sum(row["ingest_end"] for row in found["partitions"]) == 2
    assert [verdict["stage"] for verdict in found["stuck"]] == ["sealers"]


@pytest.mark.proves("F17")
def test_status_check_exits_2_when_a_stage_is_stuck(line: CommandLine) -> None:
    assert line.run("status", "--check").exit_code == 2
    sealed(line)
    line.clock.advance(1)
    done = line.run("status", "--check")
    assert done.exit_code == 2
    assert "stuck: sealers" in done.stdout


@pytest.mark.proves("F17")
def test_finish_says_that_a_run_is_over_once_its_trainer_rests(line: CommandLine) -> None:
    sealed(line)
    assert line.run("finish").stdout == "trainer-a: was never started\n"
    trainer = Sampler(
        "trainer-a",
        config=line.config,
        broker=line.broker(),
        store=line.blobs,
        clock=line.clock,
    )
    batch = trainer.next_batch(0, num_groups=1)
    line.clock.advance(90)  # Of a step that takes so long.
    within = line.run("finish")
    assert within.exit_code == 1
    assert "trainer-a waits for acks (1 unacked)" in within.stderr
    trainer.ack(batch)
    early = line.run("finish")
    assert early.exit_code == 1
    assert "trainer-a decided 0 s ago, so its trainer may still run" in early.stderr
    line.clock.advance(900)
    assert "and no sealer runs" in line.run("status").stdout
    assert line.run("finish").stdout == "trainer-a: the run is over\n"
    assert line.run("finish").stdout == "trainer-a: the run was over already\n"
    done = line.run("status", "--check")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "the run is over")


@pytest.mark.proves("F17")
def test_finish_with_force_ends_the_run_of_a_trainer_that_is_gone(line: CommandLine) -> None:
    sealed(line)
    trainer = Sampler(
        "trainer-a", config=line.config, broker=line.broker(), store=line.blobs, clock=line.clock
    )
    trainer.next_batch(0, num_groups=1)
    assert "where it is gone, --force" in line.run("finish").stderr
    assert line.run("finish", "--force").stdout == "trainer-a: the run is over\n"
    assert line.run("finish").stdout == "trainer-a: the run was over already\n"


def test_finish_where_topics_are_missing_says_that_no_run_was_finished(line: CommandLine) -> None:
    done = line.run("finish")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "no run was finished: rollstream.rollouts.math.1" in done.stderr
    assert "correct kafka.namespace" in done.stderr


def test_finish_of_an_unknown_sampler_names_those_there_are(line: CommandLine) -> None:
    line.create_topics()
    done = line.run("finish", "--sampler", "trainer-b")
    assert done.exit_code == 1
    assert "trainer-b" in done.stderr


class _StopsAfter(threading.Event):
    """Is set once it was waited for so often."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self._waits = waits

    def is_set(self) -> bool:
        self._waits -= 1
        return self._waits < 0


def test_status_watch_looks_again_until_it_is_stopped(line: CommandLine) -> None:
    line.create_topics()
    line.stopping = _StopsAfter(2)
    done = line.run("status", "--watch")
    assert done.exit_code == 0
    assert done.stdout.count("stuck: env workers") == 2
    line.stopping = _StopsAfter(2)
    looks = line.run("status", "--watch", "--json").stdout.splitlines()
    assert [json.loads(look)["stuck"][0]["stage"] for look in looks] == ["env workers"] * 2


class _FailsFirst(CommandLine):
    """A deployment whose broker cannot be opened for a while."""

    def __init__(self, folder: Path, *errors: Exception) -> None:
        super().__init__(folder)
        self._errors = [*errors]

    def broker(self) -> MemoryBroker:
        if self._errors:
            raise self._errors.pop(0)
        return super().broker()


def test_status_watch_goes_on_after_each_error_that_a_later_look_may_not_meet(
    tmp_path: Path,
) -> None:
    errors = StoreError("the store hangs"), OSError("no route to the host")
    for options in ((), ("--json",)):
        line = _FailsFirst(tmp_path, *errors)
        line.stopping = _StopsAfter(4)
        done = line.run("status", "--watch", *options)
        assert done.exit_code == 0, done.stderr
        lines = done.stdout.splitlines()
        shown = [json.loads(one)["error"] for one in lines[:2]] if options else lines[:2]
        assert shown == ["the store hangs", "no route to the host"]
        assert "topics" in done.stdout  # The third look succeeded: none are created.


def test_sentences_of_status_and_audit_are_one_line_each_in_a_pipe(line: CommandLine) -> None:
    done = line.run("status", columns="20")
    assert any(
        row.startswith("stuck: topics") and row.endswith("run `rollstream topics create`")
        for row in done.stdout.splitlines()
    ), done.stdout
    sealed(line)
    (path,) = visible_files(line.blobs)
    line.blobs.delete(path)
    done = line.run("audit", columns="20")
    assert any(row.startswith("- ") and path in row for row in done.stdout.splitlines())


def sealed(line: CommandLine) -> None:
    """Two rollouts of one group in one record and one alone, sealed as far as they can be."""
    line.create_topics()
    writer = line.broker().writer()
    partitions = line.config.environments["math"].partitions
    for group, names in (("g", "ab"), ("h", "c")):
        entries = [make_entry(rollout_uid=n, group_uid=group, group_size=2) for n in names]
        writer.append(
            line.layout.rollouts("math"),
            encode_record(entries, partitions=partitions),
            partition=partition_of(group.encode(), partitions),
        )
    assert writer.flush(10) == 0
    broker = line.broker()
    with Sealer(
        line.config, broker=broker, store=line.blobs, clock=line.clock, workers=InlineExecutor()
    ) as sealer:
        for _ in range(TURNS_MAX):
            sealer.step(Deadline(10, line.clock))
            if sealer.stats().read == 3:
                break
        sealer.flush(10)


@pytest.mark.proves("F4")
def test_audit_that_holds_shows_the_equation_and_exits_0(line: CommandLine) -> None:
    sealed(line)
    done = line.run("audit", "--digests")
    assert done.exit_code == 0, done.stdout
    assert "the audit holds" in done.stdout
    found = json.loads(line.run("audit", "--json").stdout)
    assert found["holds"] is True
    assert sum(row["published"] for row in found["partitions"]) == 3
    assert sum(row["sealed"] for row in found["partitions"]) == 2
    assert sum(row["pending"] for row in found["partitions"]) == 1


@pytest.mark.proves("F4")
def test_audit_that_does_not_hold_names_the_problem_and_exits_1(line: CommandLine) -> None:
    sealed(line)
    (path,) = visible_files(line.blobs)
    line.blobs.delete(path)
    done = line.run("audit")
    assert done.exit_code == 1
    assert "THE AUDIT DOES NOT HOLD; problems: 1" in done.stdout
    assert path in done.stdout.replace("\n", "")
    assert json.loads(line.run("audit", "--json").stdout)["holds"] is False
