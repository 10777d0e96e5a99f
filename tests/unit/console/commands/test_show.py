"""``rollstream show`` over runs in memory and over files alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from harness.command_line import CONFIG, CommandLine
from harness.producers import flush_by_jumps
from harness.published_run import Run
from harness.rollouts import make_entry
from harness.sealed_files import seal
from rollstream.console.services import Services
from rollstream.producers import RolloutProducer, Step, StepProducer
from rollstream.schemas.events import RolloutScore, Scored
from rollstream.schemas.ids import PartitionAddress
from rollstream.store.score_files import LoggedScore, write_scores
from rollstream.streams.errors import BrokerUnavailable

LONG = "x" * 3_000


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.fixture
def files(tmp_path: Path) -> CommandLine:
    """Two environments, of which ``code`` has rollouts of two policies."""
    line = CommandLine(tmp_path, f"{CONFIG}[environments.code]\n")
    groups: list[tuple[str, str, list[float | None]]] = [
        ("math", "step-0", [0.5, None, -1.0]),
        ("code", "step-0", [0.25, -2.0]),
        ("code", "step-1", [0.75, -1.0]),
    ]
    for number, (environment, policy, rewards) in enumerate(groups):
        seal(
            line.blobs,
            [
                make_entry(
                    rollout_uid=f"{environment}-{policy}-{index}",
                    policy_version=policy,
                    reward=reward,
                    output_tokens=range(1 + number + index),
                )
                for index, reward in enumerate(rewards)
            ],
            environment=environment,
            name=f"f{number}",
            offset=number,
        )
    return line


def uids(line: CommandLine, *arguments: str) -> list[str]:
    done = line.run("show", *arguments, "--json", "--from-files")
    assert done.exit_code == 0, done.output
    return [one["rollout_uid"] for one in json.loads(done.stdout)]


def without_kafka(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any) -> Any:
        raise BrokerUnavailable("kafka:9092 refuses the connection; start it")

    monkeypatch.setattr(Services, "connected", refuses)


def served(run: Run) -> str:
    """Steps 0 (trained, final) and 1 (acked) of one group each; the first one's example."""
    run.publish("a", "b")
    run.seal(2)
    with run.sampler() as sampler:
        sampler.resume(None)
        first = sampler.next_batch(0, 1)
        sampler.ack(first)
        sampler.ack(sampler.next_batch(1, 1))
        sampler.checkpointed(0)
    return first.uids[0].partition("-")[0]


@pytest.mark.proves("F18")
def test_a_rollout_is_shown_with_its_tokens_rewards_provenance_and_what_became_of_it(
    run: Run,
) -> None:
    run.publish(
        "a",
        output_tokens=[7, 8, 9],
        loss_mask=[True, False, False],
        stop_reason="length",
        metadata={"temperature": 0.8},
    )
    run.seal(1)
    with run.sampler() as sampler:
        sampler.resume(None)
        sampler.ack(sampler.next_batch(0, 1))
        sampler.checkpointed(0)
    (found,) = run.read("show", "a-1")
    (segment,) = found["segments"]
    assert (found["environment"], found["example_id"], found["split"]) == ("math", "a", "train")
    assert (found["reward"], found["token_count"], found["stop_reason"]) == (1.0, 3, "length")
    assert (segment["prompt_tokens"], segment["output_tokens"]) == ([1, 2], [7, 8, 9])
    assert segment["masked"] == [[1, 3]]
    assert (segment["metadata"], segment["replica_id"]) == ({"temperature": 0.8}, "worker-1")
    (traced,) = run.read("lineage", "--uid", "a-1")[0]["entries"]
    assert found["path"] == traced["group"]["path"]
    (row,) = traced["group"]["segments"]
    assert (segment["row"], segment["log_offset"], segment["log_entry"]) == (
        row["row"],
        row["offset"],
        row["entry"],
    )
    by_sampler = {one["sampler"]: one for one in found["became"]}
    assert by_sampler["trainer-a"]["state"] == "trained"
    assert by_sampler["trainer-a"]["step"] == 0
    assert by_sampler["trainer-b"]["state"] == "waiting"
    lines = run.line.run("show", "a-1").stdout.splitlines()
    assert lines[0] == "a-1 of math, example a"
    assert "reward 1, stop reason length, 2 prompt tokens, 3 output tokens, split train" in lines
    assert 'metadata {"temperature": 0.8}' in lines
    assert f"  {found['path']}" in lines
    assert "trainer-a: step 0, slot 0 of trainer-a-1-0: trained" in lines
    assert lines[-5:] == [
        "-- prompt, 2 tokens",
        "1 2",
        "-- output, 3 tokens, 2 of them masked",
        "7 [masked 2: 8 9]",
        "",
    ]


@pytest.mark.proves("F18")
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        # Of equal rewards the longest comes first; one whose reward is awaited is not ranked.
        (["--lowest-reward", "3"], ["code-step-0-1", "code-step-1-1", "math-step-0-2"]),
        (["--highest-reward", "2"], ["code-step-1-0", "math-step-0-0"]),
        (["--longest", "2"], ["code-step-1-1", "code-step-0-1"]),
        (["--lowest-reward", "9", "--environment", "math"], ["math-step-0-2", "math-step-0-0"]),
        (
            ["--highest-reward", "9", "--policy", "step-0", "--environment", "code"],
            ["code-step-0-0", "code-step-0-1"],
        ),
    ],
)
def test_the_worst_the_best_and_the_longest_are_found_among_all_files(
    files: CommandLine, asked: list[str], expected: list[str]
) -> None:
    assert uids(files, *asked) == expected


@pytest.mark.proves("F18", "A18")
def test_late_scores_are_shown_beside_what_was_published_and_order_rollouts(
    files: CommandLine,
) -> None:
    say(
        files, ("", "math-step-0-1", -4.0), ("", "math-step-0-1", -5.0), ("", "math-step-0-0", -9.0)
    )
    done = files.run("show", "--lowest-reward", "2", "--json", "--from-files")
    assert done.exit_code == 0, done.output
    first, second = json.loads(done.stdout)
    assert (first["rollout_uid"], first["reward"]) == ("math-step-0-1", -5.0)
    assert first["published_reward"] is None
    score = first["score"]
    assert (score["scorer"], score["version"], score["reward"]) == ("judge", 2, -5.0)
    # No sampler names a scorer: what was published with a reward keeps it.
    assert (second["rollout_uid"], second["score"]) == ("code-step-0-1", None)
    text = files.run("show", "math-step-0-1", "--from-files").stdout
    assert "reward -5 by judge, version 2 (" in text
    assert "style 0.25" in text
    assert "flags slow; published: reward awaited" in text
    text = files.config_file.read_text()
    named = '[samplers.trainer-a]\nscorer = "judge"\nscore_version = 1\n'
    files.config_file.write_text(text.replace("[samplers.trainer-a]\n", named))
    done = files.run("show", "--lowest-reward", "2", "--json", "--from-files")
    worst, other = json.loads(done.stdout)
    assert (worst["rollout_uid"], worst["reward"]) == ("math-step-0-0", -9.0)
    assert worst["published_reward"] == 0.5
    assert (other["rollout_uid"], other["reward"]) == ("math-step-0-1", -4.0)


@pytest.mark.parametrize("by", ["sealer", "another tool"])
def test_a_score_of_a_whole_group_is_that_of_each_rollout_without_a_reward(
    files: CommandLine, by: str
) -> None:
    done = files.run("show", "math-step-0-1", "--json", "--from-files")
    (found,) = json.loads(done.stdout)
    assert (found["reward"], found["score"]) == (None, None)
    say(files, (found["group_id"], "", -7.0))
    if by == "another tool":
        file = files.blobs.root / found["path"]
        pq.write_table(pq.read_table(file), file)
    assert uids(files, "--lowest-reward", "2") == ["math-step-0-1", "code-step-0-1"]


def say(line: CommandLine, *scores: tuple[str, str, float]) -> None:
    """A judge's scores, by group and uid, are in a file."""
    records = [
        LoggedScore(
            offset,
            1_000_000 * offset,
            Scored(
                scorer="judge",
                attempt="",
                group_id=group,
                scored_ts=0,
                scores=(RolloutScore(uid, reward, {"style": 0.25}, ("slow",)),),
            ),
        )
        for offset, (group, uid, reward) in enumerate(scores)
    ]
    write_scores(line.blobs, PartitionAddress("math", 1, 0), 0, len(records), records)


def test_a_file_that_no_manifest_names_is_not_looked_at(files: CommandLine) -> None:
    (orphaned,) = files.blobs.root.glob("manifests/environment=code/**/*1.json")
    orphaned.unlink()
    assert uids(files, "--lowest-reward", "1") == ["code-step-1-1"]


def test_a_group_of_several_policies_is_searched_row_by_row(run: Run) -> None:
    with RolloutProducer(
        environment="math", broker=run.line.broker(), clock=run.line.clock
    ) as producer:
        for step in range(2):
            producer.publish(
                example_id="mixed",
                rollout_uid=f"of-{step}",
                group_uid="g",
                group_size=2,
                policy_version=f"step-{step}",
                weight_step=step,
                prompt_tokens=[1],
                output_tokens=[2],
                logprobs=[-0.5],
                reward=0.0,
            )
    run.seal(1)
    assert uids(run.line, "--longest", "5", "--policy", "step-1") == ["of-1"]


def test_a_trajectory_is_one_rollout_with_the_sum_of_its_rewards(run: Run) -> None:
    with RolloutProducer(
        environment="math", broker=run.line.broker(), clock=run.line.clock
    ) as producer:
        for number in range(2):
            with producer.trajectory(
                example_id="game",
                rollout_uid=f"game-{number}",
                group_uid="g",
                group_size=2,
            ) as trajectory:
                for reward in (0.5, None, float(number)):
                    trajectory.turn(
                        policy_version="step-0",
                        weight_step=0,
                        prompt_tokens=[1],
                        output_tokens=[2, 3],
                        logprobs=[-1, -1],
                        reward=reward,
                    )
    run.seal(1)
    first, second = run.read("show", "--lowest-reward", "2", "--from-files")
    assert (first["rollout_uid"], first["reward"], first["token_count"]) == ("game-0", 0.5, 6)
    assert (second["reward"], len(second["segments"])) == (1.5, 3)
    assert "segment 2" in run.line.run("show", "game-1").stdout.splitlines()


@pytest.mark.parametrize("rewards", [(None, 0.3, 0.7), (0.3, None, 0.7)])
def test_a_segment_without_a_reward_adds_nothing_wherever_a_return_is_shown(
    run: Run, rewards: tuple[float | None, ...]
) -> None:
    with StepProducer(broker=run.line.broker(), clock=run.line.clock) as producer:
        for index, reward in enumerate(rewards):
            step = Step(
                prompt_ids=[1],
                response_ids=[2],
                logprobs=[-1.0],
                reward=reward,
                trajectory_uid="t",
                prompt_uid="p",
                step_index=index,
                policy_version="step-0",
                weight_step=0,
                is_last=index == 2,
                n_rollouts=1,
            )
            producer.submit_step(step, environment="math")
        flush_by_jumps(producer)
    run.seal(1)
    (shown,) = run.read("show", "--lowest-reward", "9", "--from-files")
    assert (shown["trajectory_uid"], shown["reward"]) == ("t", pytest.approx(1.0))
    assert [segment["reward"] for segment in shown["segments"]] == list(rewards)
    with run.sampler() as sampler:
        sampler.resume(None)
        batch = sampler.next_batch(0, 1)
        assert batch.trajectory_returns.tolist() == [pytest.approx(1.0)]
        assert batch.metrics()["reward/mean"] == pytest.approx(1.0)
        sampler.ack(batch)
    (trained,) = run.read("report", "--sampler", "trainer-a")["by_environment"]
    assert trained["trained"] == 1


@pytest.mark.proves("F18")
def test_a_step_is_shown_by_the_log_and_without_kafka_by_its_file(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = served(run)
    step = ("show", "--sampler", "trainer-a", "--step", "0")
    found = run.read(*step)
    assert [one["rollout_uid"] for one in found] == [f"{first}-0", f"{first}-1"]
    assert {one["became"][0]["state"] for one in found} == {"trained"}
    (worst,) = run.read(*step, "--lowest-reward", "1")
    assert worst["rollout_uid"] == f"{first}-0"
    without_kafka(run, monkeypatch)
    done = run.line.run(*step, "--json")
    (said,) = done.stderr.splitlines()
    assert said == (
        "from files alone, since no broker answers: kafka:9092 refuses the connection; start it"
    )
    alone = json.loads(done.stdout)
    assert {one["became"][0]["state"] for one in alone} == {"in_batch"}
    assert {one["became"][0]["step"] for one in alone} == {0}
    for one in (*found, *alone):
        del one["became"]
    assert alone == found
    text = run.line.run(*step).stdout
    assert "in a batch; its file does not say what became of that" in text


def test_a_step_has_the_groups_that_took_the_places_of_others_and_no_rows_left_out(
    run: Run,
) -> None:
    served(run)
    run.publish("c", "d")
    run.seal(2)
    with run.sampler() as sampler:
        batch = sampler.next_batch(2, 1)
        after = sampler.replace(batch, [0], "all the same")
    asked = ("--sampler", "trainer-a", "--step", "2")
    shown = [one["rollout_uid"] for one in run.read("show", *asked)]
    assert shown == list(after.uids) == uids(run.line, *asked)
    (gone,) = run.read("show", batch.uids[0])
    (became,) = [one for one in gone["became"] if one["sampler"] == "trainer-a"]
    assert (became["state"], became["detail"]) == ("filtered", "all the same")


def test_what_is_dropped_and_what_is_never_served_says_so(run: Run) -> None:
    run.publish("first", "old")
    run.publish("new", weight_step=1)
    run.publish("test", split="eval")
    run.seal(4)
    run.drop_as_stale()
    (dropped,) = run.read("show", "old-0", "--sampler", "trainer-b")
    states = [(one["state"], one["detail"]) for one in dropped["became"]]
    assert ("dropped", "stale") in states
    assert (
        "trainer-b: never served for training (split eval)" in run.line.run("show", "test-0").stdout
    )


def test_messages_are_shown_instead_of_tokens_and_long_texts_are_cut(run: Run) -> None:
    messages = [
        {"role": "user", "content": f"{LONG}\x1b[2Jend"},
        {"role": "assistant", "content": None, "tool_calls": [{"name": "run"}]},
    ]
    run.publish("a", messages=messages)
    run.seal(1)
    text = run.line.run("show", "a-0").stdout
    assert "-- user" in text
    assert "\\x1b[2Jend" in text, "spelled out, so that no terminal obeys it"
    assert '{"tool_calls": [{"name": "run"}]}' in text
    assert "-- prompt" not in text
    assert LONG not in text
    assert "characters more; --full shows them" in text
    assert LONG in run.line.run("show", "a-0", "--full").stdout
    (found,) = run.read("show", "a-0")
    assert found["segments"][0]["messages"] == messages


def configure(run: Run, tokenizer: Path) -> None:
    text = run.line.config_file.read_text()
    run.line.config_file.write_text(f'tokenizer = "{tokenizer}"\n{text}')


def test_tokens_are_read_by_the_configured_tokenizer(run: Run, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"what": 1, "is": 2, "one": 3, "two": 0, "<eos>": 4}
    model = tokenizers.models.WordLevel(vocabulary, unk_token="<eos>")
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    configure(run, tmp_path)
    run.publish("a", output_tokens=[3, 0, 4], loss_mask=[True, True, False])
    run.seal(1)
    lines = run.line.run("show", "a-0").stdout.splitlines()
    assert "what is" in lines
    assert "one two[masked 1: <eos>]" in lines
    (found,) = run.read("show", "a-0")
    assert found["segments"][0]["output_text"] == "one two <eos>"
    elsewhere = tmp_path / "other.json"
    section = f'[environments.math]\ntokenizer = "{elsewhere}"'
    text = run.line.config_file.read_text().replace("[environments.math]", section)
    run.line.config_file.write_text(text)
    done = run.line.run("show", "a-0")
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"there is no file {elsewhere}; correct the key `tokenizer`" in done.stderr
    elsewhere.write_text("{}")
    done = run.line.run("show", "a-0")
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"{elsewhere} cannot be read" in done.stderr


def test_without_the_package_token_ids_are_shown_and_what_to_install_is_said(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    (tmp_path / "tokenizer.json").write_text("{}")
    configure(run, tmp_path / "tokenizer.json")
    run.publish("a")
    run.seal(1)
    done = run.line.run("show", "a-0")
    assert "1 2" in done.stdout.splitlines()
    (said,) = done.stderr.splitlines()
    assert said.startswith("math: token ids, since `tokenizers` is not installed")
    assert "pip install '.[tokenizer]'" in said


def test_a_file_that_is_gone_or_damaged_is_named(run: Run) -> None:
    run.publish("a", "b")
    run.seal(2)
    (found,) = run.read("show", "a-0")
    file = run.line.blobs.root / found["path"]
    sealed = file.read_bytes()
    tokens = np.array([3, 0], np.int32).tobytes()  # The first rollout's output.
    assert tokens in sealed
    file.write_bytes(sealed.replace(tokens, tokens[::-1], 1))
    done = run.line.run("show", "a-0")
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"{found['path']}: " in done.stderr
    assert "not what was sealed" in done.stderr
    file.unlink()
    for asked in (["a-0"], ["--longest", "1"]):
        done = run.line.run("show", *asked)
        assert (done.exit_code, done.stdout) == (1, "")
        assert found["path"] in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_show_of_nothing_says_what_to_give(files: CommandLine) -> None:
    for wrong in (
        [],
        ["--environment", "math"],
        ["a", "--longest", "1"],
        ["a", "--step", "0"],
        ["--longest", "1", "--lowest-reward", "1"],
    ):
        done = files.run("show", *wrong)
        assert done.exit_code == 2, wrong
        assert "--lowest-reward" in done.stderr
    done = files.run("show", "--step", "0")
    assert done.exit_code == 2
    assert "--step needs --sampler" in done.stderr
    for asked, told in [
        (["nobody-0"], "no sealed rollout 'nobody-0' in the files under file:///unused"),
        (["--longest", "1", "--environment", "maths"], "no sealed rollout of environment maths"),
        (["--sampler", "nobody", "--step", "0"], "no decision of a sampler 'nobody'"),
    ]:
        done = files.run("show", *asked, "--from-files")
        assert (done.exit_code, done.stdout) == (1, "")
        assert told in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.proves("F18", "F20")
@pytest.mark.parametrize("text", ["{no json", '"x"', '{"a":1}', "[1,2]", "[" * 20_000])
def test_messages_that_nobody_can_read_are_shown_as_they_are(tmp_path: Path, text: str) -> None:
    line = CommandLine(tmp_path, CONFIG)
    entries = [
        make_entry(rollout_uid="odd", messages=text, output_tokens=range(3)),
        make_entry(rollout_uid="even", messages='[{"role":"user","content":"2+2?"}]'),
    ]
    seal(line.blobs, entries, environment="math", name="f0", offset=0)
    done = line.run("show", "--longest", "10", "--json", "--from-files")
    assert done.exit_code == 0, done.output
    found = {one["rollout_uid"]: one["segments"][0]["messages"] for one in json.loads(done.stdout)}
    assert found["odd"] == [{"role": "unreadable", "content": text}]
    assert found["even"] == [{"role": "user", "content": "2+2?"}]
    assert "-- unreadable" in line.run("show", "odd", "--from-files").stdout
