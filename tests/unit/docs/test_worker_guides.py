"""What the guides for env workers, and for rollouts of several turns, show does what they say."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from harness.brokers import until
from harness.documented_run import RELEASED_FROM, TURNS, DocumentedRun
from harness.pages import snippets
from harness.printed_pages import printed
from rollstream.producers import NoPolicy, RunOver
from rollstream.store import open_dataset

WORKERS = "guides/env_workers.md"
MULTI_TURN = "guides/multi_turn.md"
TIMEOUT_S = 30.0
MEMBERS = 8


def file_of(page: str, title: str) -> ModuleType:
    """The file of that title which the page prints, as a module."""
    module = ModuleType(Path(title).stem)
    exec(printed(page, title), module.__dict__)
    return module


def executed(page: str, marker: str, **names: Any) -> dict[str, Any]:
    """The names after the one Python snippet of the page that holds the marker."""
    (snippet,) = (text for text in snippets(page, "python") if marker in text)
    exec(snippet, names)
    return names


def rows_of(run: DocumentedRun, example_id: str) -> list[dict[str, Any]]:
    """In the order of the log, once they are sealed."""
    run.seal(1)
    table = open_dataset(run.root).to_table(filter=pc.field("example_id") == example_id)
    rows: list[dict[str, Any]] = table.sort_by("log_offset").to_pylist()
    return rows


def sampled() -> tuple[list[int], list[float]]:
    return [1, 2], [-0.1, -0.2]


@pytest.fixture
def worker() -> Any:
    """The worker that the page prints, without its engine."""
    module: Any = file_of(WORKERS, "worker.py")
    module.engine = SimpleNamespace(load=len, sample=sampled)
    return module


def test_a_worker_loads_the_newest_policy_and_samples_with_it(worker: Any, tmp_path: Path) -> None:
    run = DocumentedRun(tmp_path)
    fetched: list[str] = []
    worker.engine.load = fetched.append
    with run.producer() as producer:
        worker.work(producer, ["aime-17"])
    assert fetched == [f"/weights/step-{RELEASED_FROM}"]
    rows = rows_of(run, "aime-17")
    assert [(row["weight_step"], row["policy_version"]) for row in rows] == [
        (RELEASED_FROM, f"step-{RELEASED_FROM}.e1")
    ] * MEMBERS


def test_a_worker_goes_on_without_the_members_that_failed(worker: Any, tmp_path: Path) -> None:
    run = DocumentedRun(tmp_path)
    answers = iter([0, *range(1, MEMBERS)])
    worker.engine.sample = lambda: ([next(answers), 2], [-0.1, -0.2])
    with run.producer() as producer:
        worker.work(producer, ["aime-17"])
    assert len(rows_of(run, "aime-17")) == MEMBERS - 1
    with run.sampler() as sampler:
        assert sampler.progress().failures["math"] == {"the sandbox died": 1}


def is_over(ask: Callable[[], object]) -> bool:
    """Whether asking for a policy says that the run is over."""
    try:
        ask()
    except NoPolicy as error:
        return isinstance(error, RunOver)
    return False


@pytest.mark.parametrize("ends_in", ["dispatch", "sample"])
def test_a_worker_whose_run_ends_ends_without_a_failed_member(
    worker: Any, tmp_path: Path, ends_in: str
) -> None:
    run = DocumentedRun(tmp_path)
    problems = map(str, range(3))
    with run.producer() as producer, run.sampler() as sampler:
        policy = producer.policy(timeout_s=TIMEOUT_S)

        def ending(call: Callable[..., Any]) -> Callable[..., Any]:
            """The run ends before the call."""

            def ended(*arguments: Any, **named: Any) -> Any:
                sampler.finish()
                # A thread tells workers, and the run's clock, which it does not move, ends waits.
                until(
                    lambda: is_over(lambda: producer.policy(newer_than=policy, timeout_s=TIMEOUT_S))
                )
                return call(*arguments, **named)

            return ended

        calls: dict[str, Callable[..., Any]] = {"dispatch": producer.dispatch, "sample": sampled}
        calls[ends_in] = ending(calls[ends_in])
        worker.engine.sample = calls["sample"]
        with suppress(RunOver):
            worker.work(
                SimpleNamespace(policy=producer.policy, dispatch=calls["dispatch"]), problems
            )
        producer.flush()
        run.seal(1)
        progress = sampler.progress()
    assert list(problems) == ["2"]
    assert (progress.dispatched, progress.never_back, progress.unfinished) == ({}, {}, {})


@pytest.fixture
def conversation(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Arguments of the two ``play`` that the page prints, whose engine always says 8, 9 and whose
    tool says 0."""
    engine: Any = file_of(MULTI_TURN, "engine.py")
    engine.sample = lambda context: ([8, 9], [-0.1, -0.2])
    engine.respond = lambda sampled: [0]
    monkeypatch.setitem(sys.modules, "engine", engine)
    return {"prompt": [1, 2], "turns": 3}


def test_a_conversation_is_one_sequence_with_a_mask(
    conversation: dict[str, Any], tmp_path: Path
) -> None:
    run = DocumentedRun(tmp_path)
    play = file_of(MULTI_TURN, "one_sequence.py").play
    with run.producer() as producer, producer.dispatch(example_id="chat", group_size=1) as group:
        play(group, producer.policy(), **conversation)
    (row,) = rows_of(run, "chat")
    assert row["prompt_tokens"] == [1, 2]
    assert row["output_tokens"] == [8, 9, 0] * 3
    assert row["loss_mask"] == [True, True, False] * 3
    assert row["reward"] == 1.0


def test_a_trajectory_has_a_row_a_turn_each_with_its_whole_context(
    conversation: dict[str, Any], tmp_path: Path
) -> None:
    run = DocumentedRun(tmp_path)
    play = file_of(MULTI_TURN, "segments.py").play
    with run.producer() as producer, producer.dispatch(example_id="web-3", group_size=1) as group:
        play(group, producer.policy(), **conversation)
    assert [
        (row["prompt_tokens"], row["output_tokens"], row["reward"]) for row in rows_of(run, "web-3")
    ] == [
        ([1, 2], [8, 9], None),
        ([1, 2, 8, 9, 0], [8, 9], None),
        ([1, 2, 8, 9, 0, 8, 9, 0], [8, 9], 1.0),
    ]


def test_advantages_are_averaged_by_trajectory(run: DocumentedRun) -> None:
    batch = next(b for b in run.served if {"web"} < set(b.environments))
    found = executed(MULTI_TURN, "advantages =", batch=batch, np=np)
    expected = [1.0 if index % 2 else 0.0 for index in range(2 * batch.num_groups)]
    assert found["returns"].tolist() == expected
    assert found["advantages"].tolist() == [value - 0.5 for value in expected]
    assert len(found["per_token"]) == len(batch.tokens)
    of_three_turns = np.bincount(batch.trajectory_index) == max(TURNS)
    assert of_three_turns.any()
    rows = of_three_turns[batch.trajectory_index]
    assert set(found["per_row"][rows].tolist()) == {0.5}
    weights = executed(MULTI_TURN, "of_token", **found)["weights"]
    sums = np.bincount(np.repeat(batch.trajectory_index, np.diff(batch.offsets)), weights)
    assert sums == pytest.approx(1 / len(expected))
