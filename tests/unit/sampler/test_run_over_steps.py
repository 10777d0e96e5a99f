"""A run over its steps, from its files alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from harness.documented_run import GROUPS, NAME, RELEASED_FROM, TURNS, DocumentedRun
from harness.eventful_run import LATE, LATE_REWARD, STEPS, EventfulRun
from harness.failing_blobs import CountingBlobs
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.deadline import Deadline
from rollstream.sampler.history.report_rows import FAILED_REASONS_MAX
from rollstream.sampler.history.run import (
    RunColumns,
    RunFiles,
    TableQuery,
    bin_of,
    find_rows,
    series_of,
)
from rollstream.sampler.history.run.columns import Ended
from rollstream.sampler.history.run.files import OPEN
from rollstream.sampler.history.run.series import NAMED_MAX, POINTS_MAX
from rollstream.store.layout import MANIFESTS, SCORES, batches_prefix
from rollstream.store.manifests import list_manifests, read_columns
from rollstream.streams.topics.layout import BadName, check_name_in_topic


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> DocumentedRun:
    return DocumentedRun(tmp_path_factory.mktemp("documented"))


@pytest.fixture(scope="module")
def eventful(tmp_path_factory: pytest.TempPathFactory) -> EventfulRun:
    return EventfulRun(tmp_path_factory.mktemp("eventful"))


def columns_of(run: DocumentedRun | EventfulRun) -> RunColumns:
    if isinstance(run, DocumentedRun):
        files = RunFiles(run.store, run.config, NAME)
    else:
        files = RunFiles(run.line.blobs, run.line.config, NAME)
    files.refresh()
    return files.columns()


def test_a_step_that_a_rewind_released_is_that_of_its_newest_batch(
    documented: DocumentedRun,
) -> None:
    columns = columns_of(documented)
    assert columns.batch_steps.tolist() == list(range(RELEASED_FROM + 1))
    taken = columns.taken
    assert np.bincount(taken[:, 1]).tolist() == [GROUPS] * (RELEASED_FROM + 1)
    newest = documented.served[-1]
    uids = {columns.uid(at) for at in np.flatnonzero(columns.steps == RELEASED_FROM).tolist()}
    assert uids == {*newest.uids}


def test_a_trajectory_of_turns_is_one_rollout_with_the_tokens_of_all(
    documented: DocumentedRun,
) -> None:
    found = find_rows(columns_of(documented), TableQuery(environment="web", order="longest"))
    assert {row.tokens for row in found.rows} == {2 * turns for turns in TURNS}
    assert {row.reward for row in found.rows} == {0.0, 1.0}


def test_evaluation_is_in_no_other_line_of_rewards(eventful: EventfulRun) -> None:
    columns = columns_of(eventful)
    series = series_of(columns)
    assert set(series.evaluation.lines) == {"math"}
    train = ~columns.group_is_eval[columns.group_of] & (columns.weight_steps == 5)
    is_math = columns.group_environment[columns.group_of] == 0
    expected = np.nanmean(columns.rewards[train & is_math])
    at = series.policy_reward.x.tolist().index(5.0)
    assert series.policy_reward.lines["math"][at] == pytest.approx(expected)


def test_a_late_score_is_the_reward_of_its_rollout(eventful: EventfulRun) -> None:
    (row,) = find_rows(columns_of(eventful), TableQuery(text=LATE)).rows
    assert (row.uid, row.reward) == (LATE, LATE_REWARD)


def test_lag_waits_and_failures_are_those_of_the_run(eventful: EventfulRun) -> None:
    series = series_of(columns_of(eventful))
    assert series.steps == STEPS
    assert np.nanmax(series.lag.lines["largest"]) == 2.0
    assert np.nanmin(series.waits.lines["batch to batch"]) >= 2.0
    assert series.failures == {"web": {"left early": STEPS // 4}}
    assert sum(taken + left for _, taken, left in series.by_length) == 186 + 96


def test_reasons_of_failures_are_bounded(eventful: EventfulRun) -> None:
    columns = columns_of(eventful)
    each = [
        Ended(environment="web", ts=columns.batch_ts[0], reason=f"at {at}", members=1, failed=True)
        for at in range(FAILED_REASONS_MAX + 10)
    ]
    failures = series_of(replace(columns, ended=each)).failures["web"]
    assert len(failures) < FAILED_REASONS_MAX
    assert sum(failures.values()) == len(each)


def test_more_steps_than_points_are_merged_evenly() -> None:
    assert bin_of(POINTS_MAX) == 1
    assert bin_of(POINTS_MAX + 1) == 2
    assert bin_of(10 * POINTS_MAX) == 10


def test_a_run_that_goes_on_is_read_on_from_where_it_was(tmp_path: Path) -> None:
    run = DocumentedRun(tmp_path)
    files = RunFiles(run.store, run.config, NAME)
    assert files.refresh()
    assert not files.refresh()
    before = files.columns().rollouts
    run.train_on(RELEASED_FROM, RELEASED_FROM + 3)
    assert files.refresh()
    columns = files.columns()
    assert columns.rollouts > before
    assert columns.batch_steps[-1] == RELEASED_FROM + 2


def test_a_batch_is_read_once_and_again_when_it_was_written_anew(tmp_path: Path) -> None:
    run = DocumentedRun(tmp_path)
    run.train_on(RELEASED_FROM, RELEASED_FROM + OPEN)
    store = CountingBlobs(run.store)
    files = RunFiles(store, run.config, NAME)
    files.refresh()
    paths = [one.path for one in run.store.list(f"{batches_prefix(NAME)}trainer_epoch=")]
    assert store.opened > len(paths) > OPEN + 1

    def opened() -> int:
        store.opened = 0
        files.refresh()
        return store.opened

    assert {opened() for _ in paths} == {OPEN, OPEN + 1}
    whole = orjson.loads(run.store.read(paths[-1]))
    whole["groups"] = whole["groups"][1:]
    run.store.replace(paths[-1], orjson.dumps(whole))
    assert files.refresh()
    assert files.columns().batch_groups[-1] == len(whole["groups"])
    # Another group of the same flush: as many bytes as before.
    whole["groups"][0]["index"] = (whole["groups"][0]["index"] + 1) % 10
    run.store.replace(paths[-1], orjson.dumps(whole))
    assert files.refresh()
    whole = orjson.loads(run.store.read(paths[0]))
    whole["groups"][0]["index"] = (whole["groups"][0]["index"] + 1) % 10
    run.store.replace(paths[0], orjson.dumps(whole))
    assert any(files.refresh() for _ in paths)


def test_an_environment_of_any_name_has_a_line_of_its_own(eventful: EventfulRun) -> None:
    columns = columns_of(eventful)
    names = ["others", *(f"env-{at}" for at in range(NAMED_MAX))]
    environment = np.arange(len(columns.examples), dtype=np.int32) % len(names)
    series = series_of(replace(columns, environments=names, group_environment=environment))
    rest = {*series.policy_reward.lines} - {*names}
    assert len(rest) == 1
    assert len(series.policy_reward.lines) == NAMED_MAX + 1
    with pytest.raises(BadName):
        check_name_in_topic(rest.pop())


def test_with_little_time_the_newest_part_is_read_and_the_rest_is_named(
    documented: DocumentedRun,
) -> None:
    files = RunFiles(documented.store, documented.config, NAME)
    clock = ManualClock()
    over = Deadline(0.0, clock)
    files.refresh(over)
    part = files.columns()
    assert 0 < part.rollouts < columns_of(documented).rollouts
    assert part.unread > 0
    while files.columns().unread:
        files.refresh(over)
    assert steps_by_uid(files.columns()) == steps_by_uid(columns_of(documented))


def steps_by_uid(columns: RunColumns) -> list[tuple[str, int]]:
    """What the columns say of each rollout's step."""
    return [(columns.uid(at), int(columns.steps[at])) for at in range(columns.rollouts)]


def test_a_damaged_file_is_passed_over_and_named(tmp_path: Path) -> None:
    run = DocumentedRun(tmp_path)
    batch = next(iter(run.store.list(f"{batches_prefix(NAME)}trainer_epoch="))).path
    manifest = next(iter(run.store.list(f"{MANIFESTS}/"))).path
    for path in (batch, manifest):
        run.store.replace(path, b"{")
    files = RunFiles(run.store, run.config, NAME)
    files.refresh()
    assert set(files.columns().unreadable) == {batch, manifest}
    assert files.columns().rollouts > 0


def test_damaged_scores_are_read_once_and_named(tmp_path: Path) -> None:
    run = EventfulRun(tmp_path)
    store = CountingBlobs(run.line.blobs)
    paths = [blob.path for blob in store.list(f"{SCORES}/")]
    for path in paths:
        store.replace(path, b"PAR1")
    files = RunFiles(store, run.line.config, NAME)
    files.refresh()
    store.opened = 0
    columns = files.columns()
    assert set(columns.unreadable) == {f"{SCORES}/"}
    assert 0 < store.opened <= len(paths) < len(columns.uids)


def test_a_file_that_is_json_and_says_what_cannot_be_is_passed_over(tmp_path: Path) -> None:
    run = DocumentedRun(tmp_path)
    damages: tuple[Callable[[dict[str, Any]], object], ...] = (
        lambda event: event["groups"][0].update(file=99),
        lambda event: event["segments"].update(rewards=event["segments"]["rewards"][:1]),
        lambda event: event.update(groups=[3]),
    )
    for damage in damages:
        paths = [blob.path for blob in run.store.list(f"{MANIFESTS}/")]
        files = RunFiles(run.store, run.config, NAME)
        whole = run.store.read(paths[0])
        content = orjson.loads(whole)
        damage(content["event"])
        run.store.replace(paths[0], orjson.dumps(content))
        assert files.refresh()
        assert set(files.columns().unreadable) == {paths[0]}
        assert not files.refresh(), "nothing came"
        run.store.replace(paths[0], whole)
        assert files.refresh()
        assert not files.columns().unreadable
    batch = next(iter(run.store.list(f"{batches_prefix(NAME)}trainer_epoch="))).path
    content = orjson.loads(run.store.read(batch))
    content["groups"][0]["index"] = 1 << 40
    run.store.replace(batch, orjson.dumps(content))
    files = RunFiles(run.store, run.config, NAME)
    files.refresh()
    assert series_of(files.columns()).rollouts > 0
    content["groups"][0]["index"], content["groups"][0]["offset"] = 0, "7"
    run.store.replace(batch, orjson.dumps(content))
    files = RunFiles(run.store, run.config, NAME)
    files.refresh()
    assert set(files.columns().unreadable) == {batch}


@pytest.mark.parametrize("order", ["lowest_reward", "highest_reward", "longest"])
def test_pages_of_the_table_have_each_rollout_once_in_order(
    eventful: EventfulRun, order: str
) -> None:
    columns = columns_of(eventful)
    keys = list[float]()
    first, uids = 0, list[str]()
    while True:
        query = TableQuery(order=order, first=first, most=37)  # type: ignore[arg-type]
        found = find_rows(columns, query)
        if not found.rows:
            break
        uids += [row.uid for row in found.rows]
        by = "tokens" if order == "longest" else "reward"
        keys += [float(getattr(row, by)) for row in found.rows]
        first += len(found.rows)
    assert len({*uids}) == len(uids) == found.found
    assert keys == sorted(keys, reverse=order != "lowest_reward")


def test_a_search_finds_uids_examples_and_policies_of_one_environment(
    eventful: EventfulRun,
) -> None:
    columns = columns_of(eventful)
    (row,) = find_rows(columns, TableQuery(text="th-7-1-2")).rows
    assert row.uid == "math-7-1-2"
    found = find_rows(columns, TableQuery(text="step-7", environment="web"))
    assert found.found
    assert {(row.environment, row.policy_version) for row in found.rows} == {("web", "step-7")}
    assert find_rows(columns, TableQuery(text="no such text")).found == 0


def test_columns_of_a_manifest_are_those_of_the_event(documented: DocumentedRun) -> None:
    for manifest in list_manifests(documented.store):
        event = manifest.event
        address, offset = manifest.address, manifest.offset
        folder = f"{MANIFESTS}/environment={address.environment}/generation=1/partition=0"
        columns = read_columns(
            documented.store, f"{folder}/{offset:020d}.json", ["rewards", "uids"]
        )
        assert columns.now_ts == event.now_ts
        assert columns.segments["uids"] == event.segments.uids
        np.testing.assert_array_equal(columns.segments["rewards"], event.segments.rewards)
        ids = [group["group_id"] for group in columns.groups]
        assert ids == [group.group_id for group in event.groups]


def test_a_uid_may_hold_what_separates_uids(eventful: EventfulRun) -> None:
    columns = columns_of(eventful)
    renamed = replace(columns, uids=[b"a\nb", *columns.uids[1:]])
    assert renamed.with_uid("b", 1_000)[-1] == int(columns.flush_starts[0]) + 1
