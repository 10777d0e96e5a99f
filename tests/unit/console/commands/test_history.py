"""``rollstream replay`` and ``rollstream lineage`` over a run in memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.published_run import Run
from harness.rollouts import encode_record, make_entry
from rollstream.sampler import CarriedGroup, Shaping
from rollstream.sampler.history import lineage_of_rollout, lineage_of_step, replay_step
from rollstream.store import read_root_id
from rollstream.streams.memory import MemoryLogs


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def two_steps(run: Run) -> Sequence[str]:
    """Two batches of one group, the second replaced once; the examples of each slot in turn."""
    run.publish("a", "b", "c")
    run.seal(3)
    with run.sampler() as sampler:
        sampler.resume(None)
        first = sampler.next_batch(0, 1)
        sampler.ack(first)
        second = sampler.next_batch(1, 1)
        third = sampler.replace(second, [0], "all the same")
        sampler.ack(third)
        sampler.checkpointed(0)
        return [batch.uids[0].partition("-")[0] for batch in (first, second, third)]


@pytest.mark.proves("F2")
def test_replay_decides_the_same_from_logs_and_finds_the_same_rows_in_the_files(run: Run) -> None:
    two_steps(run)
    found = run.read("replay", "--sampler", "trainer-a", "--step", "1")
    assert found["same"]
    assert [one["decision"] for one in found["decisions"]] == ["served", "replaced"]
    assert all(one["groups_found"] == one["groups_recorded"] for one in found["decisions"])
    done = run.line.run("replay", "--sampler", "trainer-a", "--step", "1")
    assert done.stdout.splitlines()[-1] == "step 1 of trainer-a: the same"
    files = run.read("replay", "--sampler", "trainer-a", "--step", "1", "--from-files")
    assert files["same"]
    assert files["recorded"] == found["decisions"][-1]["recorded"]


@pytest.mark.proves("F2")
def test_the_root_alone_is_enough_to_check_a_batch(run: Run, tmp_path: Path) -> None:
    two_steps(run)
    run.line.config_file.write_text("not a configuration")
    root = run.line.blobs.root
    batch = ("replay", "--sampler", "trainer-a", "--step", "0", "--from-files")
    found = run.read(*batch, "--root", root.as_uri())
    assert found["same"]
    assert found["root_id"] == read_root_id(run.line.blobs).root_id
    shown = run.line.run(*batch, "--root", root.as_uri()).stdout
    assert shown.splitlines() == [f"root {found['root_id']}", "step 0 of trainer-a: the same"]
    (decision,) = root.glob("batches/sampler=trainer-a/*/000000000000.json")
    changed = json.loads(decision.read_text())
    changed["digest"] = "00" * 16
    decision.write_text(json.dumps(changed))
    done = run.line.run(*batch, "--root", root.as_uri())
    assert done.exit_code == 1
    assert done.stdout.splitlines()[-1] == "step 0 of trainer-a: DIFFERS"
    done = run.line.run("replay", "--sampler", "trainer-b", *batch[3:], "--root", root.as_uri())
    assert done.exit_code == 1
    assert "no decision of a sampler 'trainer-b'" in done.stderr


def test_replay_of_a_step_or_sampler_that_never_was_is_one_line(run: Run) -> None:
    two_steps(run)
    done = run.line.run("replay", "--sampler", "trainer-a", "--step", "9")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "no batch for step 9" in done.stderr
    done = run.line.run("replay", "--sampler", "nobody", "--step", "0")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "no decision log of a sampler 'nobody'" in done.stderr
    done = run.line.run("replay", "--sampler", "trainer-a", "--step", "0", "--root", "file:///x")
    assert done.exit_code == 2
    assert "--root goes with --from-files" in done.stderr


@pytest.mark.proves("F2")
def test_lineage_of_a_step_leads_to_rows_entries_and_replicas(run: Run) -> None:
    first, second, third = two_steps(run)
    found = run.read("lineage", "--sampler", "trainer-a", "--step", "1")
    (group,) = found["groups"]
    (before,) = found["replaced"]
    assert group["origin"]["example_id"] == third
    assert before["origin"]["example_id"] == second
    assert (before["use"]["state"], before["use"]["detail"]) == ("filtered", "all the same")
    assert (group["use"]["state"], group["use"]["acked"]) == ("served", "trained")
    segments = group["origin"]["segments"]
    assert [one["rollout_uid"] for one in segments] == [f"{third}-0", f"{third}-1"]
    assert [one["replica_id"] for one in segments] == ["worker-0", "worker-1"]
    text = run.line.run("lineage", "--sampler", "trainer-a", "--step", "1").stdout
    assert f"{third}-0" in text
    assert group["origin"]["path"] in text
    (done,) = run.read("lineage", "--sampler", "trainer-a", "--step", "0")["groups"]
    assert (done["use"]["state"], done["origin"]["example_id"]) == ("trained", first)


def test_what_history_finds_is_shown_in_a_line(run: Run) -> None:
    first, _, _ = two_steps(run)
    parts: dict[str, Any] = {"config": run.line.config, "broker": run.line.broker()}
    parts["clock"] = run.line.clock
    step = lineage_of_step("trainer-a", 1, **parts)
    assert repr(step).endswith(": 1 groups, 1 replaced)")
    (found,) = lineage_of_rollout(f"{first}-1", **parts)
    assert repr(found).endswith(": sealed; in 1 batches)")
    (replayed,) = replay_step("trainer-a", 0, **parts)
    assert repr(replayed).endswith(", 1 groups: the same)")


def test_lineage_of_a_rollout_is_the_same_from_the_logs_since_it_was_published(run: Run) -> None:
    first, _, _ = two_steps(run)
    whole = run.read("lineage", "--uid", f"{first}-1")
    assert run.read("lineage", "--uid", f"{first}-1", "--since-hours", "1") == whole
    run.line.clock.advance(3 * 3600)
    for name in ("d", "e"):
        run.publish(name)
        run.seal(1)
        run.line.clock.advance(3600)
    assert run.read("lineage", "--uid", f"{first}-1", "--since-hours", "5.5") == whole


def test_lineage_is_readable_in_a_narrow_terminal(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, third = two_steps(run)
    (group,) = run.read("lineage", "--sampler", "trainer-a", "--step", "1")["groups"]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    done = run.line.run("lineage", "--sampler", "trainer-a", "--step", "1", columns="72")
    lines = done.stdout.splitlines()
    path = group["origin"]["path"]
    assert lines[1] == f"slot 0: group {group['origin']['group_id']}"
    assert lines[2].strip() == path, "longer than a line, and whole"
    (row, _) = group["origin"]["segments"]
    expected = f"  row {row['row']}: {third}-0 from worker-0, math[0] offset "
    assert lines[3].startswith(expected)
    assert all(len(line) <= 72 for line in lines if path not in line)


@pytest.mark.proves("F2")
def test_lineage_of_a_rollout_names_row_entry_and_the_steps_that_trained_on_it(run: Run) -> None:
    first, second, third = two_steps(run)
    (found,) = run.read("lineage", "--uid", f"{first}-1")
    (entry,) = found["entries"]
    assert (entry["state"], entry["replica_id"]) == ("sealed", "worker-1")
    (row,) = entry["group"]["segments"]
    assert (row["offset"], row["entry"]) == (entry["offset"], entry["entry"])
    assert [one["sampler"] for one in found["samplers"]] == ["trainer-a", "trainer-b"]
    (use,) = run.uses(f"{first}-1", "trainer-a")
    assert (use["step"], use["state"]) == (0, "trained")
    (use,) = run.uses(f"{second}-0", "trainer-a")
    assert (use["step"], use["state"], use["detail"]) == (1, "filtered", "all the same")
    (use,) = run.uses(f"{third}-0", "trainer-a")
    assert (use["step"], use["state"]) == (1, "served")
    assert run.uses(f"{third}-0", "trainer-b") == []
    text = run.line.run("lineage", "--uid", f"{first}-1").stdout
    assert "trainer-a: step 0, slot 0 of trainer-a-1-0: trained" in text
    assert "trainer-b: neither served nor dropped" in text


@pytest.mark.proves("F2")
def test_a_step_that_keeps_some_of_a_group_is_told_of_these_rollouts_alone(run: Run) -> None:
    run.publish("a", "b")
    run.seal(2)
    with run.sampler() as sampler:
        sampler.resume(None)
        shaping = Shaping(settings="{}", num_groups=1, min_groups=1, carried=())
        first = sampler.next_shaped_batch(0, shaping)
        left = CarriedGroup(first.sampled.group_ids[0], np.array([False, True]))
        sampler.ack(first, outcomes={"trained": [0], "kept": [1]})
        second = sampler.next_shaped_batch(1, replace(shaping, carried=(left,)))
        sampler.ack(second, outcomes={"trained": [0, 1, 3]})
        sampler.checkpointed(1)
    ended, kept = first.uids
    assert [(use["step"], use["carried"]) for use in run.uses(ended, "trainer-a")] == [(0, False)]
    steps = [(use["step"], use["carried"]) for use in run.uses(kept, "trainer-a")]
    assert steps == [(0, False), (1, True)]
    told = "step 1, slot 1 of trainer-a-1-1, kept for it by the step before: trained"
    for command in (("lineage", "--uid"), ("show",)):
        assert told in run.line.run(*command, kept).stdout
        assert "step 1" not in run.line.run(*command, ended).stdout
    rows = run.line.run("lineage", "--sampler", "trainer-a", "--step", "1").stdout.splitlines()
    assert [ended in row for row in rows if row.endswith(", not kept for this step")] == [True]


@pytest.mark.proves("F2")
def test_lineage_follows_a_resume_that_releases_and_one_that_replays(run: Run) -> None:
    _, _, third = two_steps(run)
    with run.sampler() as sampler:
        sampler.resume(0, later="replay")
    (use,) = run.uses(f"{third}-0", "trainer-a")
    assert (use["state"], use["acked"]) == ("served", None)
    with run.sampler() as sampler:
        sampler.resume(0, later="release")
        again = sampler.next_batch(1, 1)
        sampler.ack(again, "failed")
        sampler.checkpointed(1)
    assert again.uids[0] == f"{third}-0"  # The others were trained on, or filtered.
    states = [(use["state"], use["trainer_epoch"]) for use in run.uses(f"{third}-0", "trainer-a")]
    assert states == [("released", 1), ("failed", 3)]
    released = ("lineage", "--sampler", "trainer-a", "--step", "1", "--trainer-epoch", "1")
    assert run.read(*released)["groups"][0]["use"]["state"] == "released"
    assert run.read(*released[:-2])["groups"][0]["use"]["state"] == "failed"
    assert run.read("replay", *released[1:])["same"]


@pytest.mark.proves("F2")
def test_lineage_says_why_a_rollout_is_never_trained_on(run: Run) -> None:
    run.publish("first", "old")
    run.publish("new", weight_step=1)
    run.publish("test", split="eval")
    run.publish("old")  # Once more.
    run.seal(4)
    run.drop_as_stale()
    (found,) = run.read("lineage", "--uid", "old-0", "--sampler", "trainer-b")
    assert [one["state"] for one in found["entries"]] == ["sealed", "duplicate"]
    (dropped,) = found["samplers"][0]["drops"]
    assert dropped["reason"] == "stale"
    text = run.line.run("lineage", "--uid", "test-0").stdout
    assert "(split eval: never served)" in text


def test_lineage_finds_what_is_pending_and_what_could_not_be_read(run: Run) -> None:
    foreign = encode_record([make_entry(rollout_uid="foreign-0")], environment="code")
    writer = run.line.broker().writer()
    writer.append(run.line.layout.rollouts("math"), foreign, partition=0)
    assert writer.flush(10) == 0
    run.publish("half")
    (entry,) = run.read("lineage", "--uid", "half-1")[0]["entries"]
    assert (entry["state"], entry["replica_id"], entry["group"]) == ("pending", "worker-1", None)
    run.seal(1)
    (entry,) = run.read("lineage", "--uid", "foreign-0")[0]["entries"]
    assert entry["state"] == "dead_letter"
    assert entry["detail"].startswith("wrong_environment: ")


def test_lineage_of_nothing_says_what_to_give(run: Run) -> None:
    for wrong in ([], ["--step", "0", "--uid", "a"], ["--step", "0"], ["--uid", ""]):
        done = run.line.run("lineage", *wrong)
        assert done.exit_code == 2, wrong
        assert "--sampler" in done.stderr
    for timeout in ("-1", "0", "nan"):
        done = run.line.run("lineage", "--uid", "a", f"--timeout={timeout}")
        assert done.exit_code == 2
        assert "is no time" in done.stderr
    done = run.line.run("lineage", "--uid", "nobody-0")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "no rollout 'nobody-0' in the logs of math" in done.stderr


def test_what_files_say_of_a_sampler_needs_no_log(run: Run) -> None:
    two_steps(run)
    run.line.logs = MemoryLogs(run.line.clock)
    found = run.read("without-logs", "--sampler", "trainer-a")
    assert found["steps"] == [
        {"first": 0, "last": 1, "known": "in_file", "trainer_epoch": 1},
    ]
    assert found["replaced"] == [1]
    assert {environment: len(ids) for environment, ids in found["ready"].items()} == {"math": 1}
    shown = run.line.run("without-logs", "--sampler", "trainer-a").stdout
    assert "0 to 1" in shown
    assert "Steps after 1 stand in no file" in shown
    assert "math: 1\n" in shown
    done = run.line.run("without-logs", "--sampler", "trainer-b")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "no snapshot and no batch of a sampler 'trainer-b'" in done.stderr


@pytest.mark.proves("F16")
def test_eval_is_a_table_by_policy_and_by_example(run: Run) -> None:
    run.publish("a", "b", split="eval")
    run.publish("c", weight_step=2, split="eval")
    run.publish("d")
    run.seal(4)
    found = run.read("eval", "--sampler", "trainer-a")
    assert [(one["policy_version"], one["total"]["trajectories"]) for one in found] == [
        ("step-0", 4),
        ("step-2", 2),
    ]
    assert found[0]["examples"].keys() == {"a", "b"}
    assert found[0]["total"]["pass_rate"] == 0.5
    lines = run.line.run("eval", "--sampler", "trainer-a").stdout.splitlines()
    assert [line.split() for line in lines[-2:]] == [
        ["0", "2", "4", "0", "0.500", "0.500", "50.0%", "step-0"],
        ["2", "1", "2", "0", "0.500", "0.500", "50.0%", "step-2"],
    ]
    by_example = run.line.run("eval", "--sampler", "trainer-a", "--examples").stdout
    assert [line.split()[-1] for line in by_example.splitlines() if "50.0%" in line] == [*"abc"]


@pytest.mark.proves("F16")
def test_a_run_that_only_evaluates_is_not_stuck_and_has_no_groups_that_wait(run: Run) -> None:
    run.publish("a", split="eval")
    run.seal(1)
    done = run.line.run("status")
    assert "eval" not in done.stdout
    assert "wait:" not in done.stdout
    assert run.line.run("status", "--check").exit_code == 0


def test_eval_says_where_nothing_was_evaluated(run: Run) -> None:
    run.publish("a")
    run.seal(1)
    assert 'published with split="eval"' in run.line.run("eval", "--sampler", "trainer-a").stdout
    assert run.read("eval", "--sampler", "trainer-a") == []


@pytest.mark.proves("F12")
def test_all_that_tells_of_a_shaped_run_agrees(run: Run) -> None:
    """Of three groups of two one rollout is trained on at once, one later, two are filtered, one is
    stale, and one is kept to the end."""
    run.publish("a", "b", "c")
    run.seal(3)
    with run.sampler() as sampler:
        sampler.resume(None)
        shaping = Shaping(settings="{}", num_groups=3, min_groups=0, carried=())
        first = sampler.next_shaped_batch(0, shaping)
        ids = first.sampled.group_ids
        sampler.ack(first, outcomes={"trained": [0], "kept": [1, 2, 3]})
        one, both = np.array([False, True]), np.array([True, True])
        left = CarriedGroup(ids[0], one), CarriedGroup(ids[1], both)
        second = sampler.next_shaped_batch(1, replace(shaping, carried=left))
        sampler.ack(second, outcomes={"trained": [1], "stale": [2], "kept": [3]})
        sampler.checkpointed(1)
        progress, stats = sampler.progress(), sampler.stats()
        expected = ["trained", "trained", "stale", "kept", "filtered", "filtered"]
        assert [_ended(run, uid) for uid in first.uids] == expected
        names = dict(zip(first.uids, first.example_ids, strict=True))
        examples = list(dict.fromkeys(names.values()))
        assert progress.trained == {"math": {examples[0]: 1}}
        assert progress.kept == {"math": {examples[1]: 1}}
        assert progress.filtered == {"math": {examples[2]: 1}}
        assert stats.outcomes == {"filtered": 1, "kept": 1, "trained": 1}
        totals = run.read("report", "--sampler", "trainer-a")["totals"]
        assert (totals["trained"], totals["kept"]) == (2, 1)
        assert totals["dropped"] == {"filtered": 2, "stale": 1}
        sampler.finish()
        assert sampler.progress().dropped == {"math": {examples[1]: {"unused": 1}}}
        assert sampler.stats().outcomes == {"filtered": 1, "trained": 1, "unused": 1}
    totals = run.read("report", "--sampler", "trainer-a")["totals"]
    assert totals["dropped"] == {"filtered": 2, "stale": 1, "unused": 1}
    assert _ended(run, first.uids[3]) == "unused"


def _ended(run: Run, uid: str) -> str:
    """The newest state of a rollout, by ``lineage`` and by ``show``."""
    (shown,) = run.read("show", uid, "--sampler", "trainer-a")
    states = [one["state"] for one in shown["became"]]
    assert [use["state"] for use in run.uses(uid, "trainer-a")] == states
    return str(states[-1])
