"""What was once chosen is chosen again, from the record alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from harness.events import GOLDEN
from harness.golden_decisions import (
    SAMPLER,
    SETTINGS,
    STEPS,
    config,
    from_bytes,
    golden_logs,
    run,
    to_bytes,
)
from harness.sampler_worlds import config_of
from rollstream.sampler.decide.choosing.choose import ALGORITHM
from rollstream.sampler.errors import DecidedByNewer, DecidedByOlder
from rollstream.sampler.history import Replayed, lineage_of_step, replay_step, report_of
from rollstream.schemas.choosing import Choosing
from rollstream.schemas.events import BatchServed, Claimed, Event, Replaced
from rollstream.streams.memory import MemoryBroker, MemoryLogs

# By these groups were dropped, in events of their own, before any was chosen.
DROPPING = {"environments", "capacity", "capacity_groups", "max_policy_lag", "recent_n_versions"}
OLDER = sorted({*GOLDEN.glob("decisions.algorithm-*.json")} - {golden_logs(ALGORITHM)})


def replayed(logs: MemoryLogs, step: int, trainer_epoch: int | None = None) -> list[Replayed]:
    return replay_step(
        SAMPLER, step, config=config(), trainer_epoch=trainer_epoch, broker=MemoryBroker(logs)
    )


def changed_choices(change: Callable[[BatchServed], BatchServed]) -> MemoryLogs:
    """The newest golden logs; what chose batches as ``change`` returns it, in a newer version."""

    def changed(event: Event) -> Event:
        if isinstance(event, Claimed):
            return replace(event, software="9.9.9")
        return change(event) if isinstance(event, BatchServed) else event

    return from_bytes(golden_logs(ALGORITHM).read_bytes(), changed)


@pytest.mark.proves("F19")
@pytest.mark.parametrize("path", OLDER, ids=lambda path: path.stem)
def test_what_an_older_algorithm_chose_is_folded_and_shown_and_not_chosen_again(path: Path) -> None:
    logs = from_bytes(path.read_bytes())
    both = config_of("file:///unused", SAMPLER)
    for step in range(STEPS):
        found = lineage_of_step(SAMPLER, step, config=both, broker=MemoryBroker(logs))
        assert len(found.groups) >= 4, step
    report = report_of(SAMPLER, config=both, broker=MemoryBroker(logs))
    assert report.next_step == STEPS
    assert len(report.by_lag) > 2
    number = path.stem.rpartition("-")[2]
    with pytest.raises(
        DecidedByOlder, match=rf"algorithm {number} .*rollstream lineage.*from-files"
    ):
        replayed(logs, 0)


@pytest.mark.proves("F2", "F19")
def test_every_choice_of_the_algorithm_is_made_again() -> None:
    logs = from_bytes(golden_logs(ALGORITHM).read_bytes())
    kinds = Counter[type]()
    settings = set[Choosing]()
    for step in range(STEPS):
        decisions = replayed(logs, step)
        assert [one.same for one in decisions] == [True] * len(decisions), step
        kinds.update(type(one.event) for one in decisions)
        settings.update(Choosing.of_record(one.event.choosing) for one in decisions)
    assert kinds[BatchServed] == STEPS
    assert kinds[Replaced] >= STEPS // 2
    assert len(settings) == len(SETTINGS)


def test_the_newest_algorithm_has_golden_logs() -> None:
    assert golden_logs(ALGORITHM).exists()


@pytest.mark.proves("F2")
def test_a_batch_that_was_released_is_made_again_by_its_trainer_epoch() -> None:
    logs = from_bytes(golden_logs(ALGORITHM).read_bytes())
    (released,), (again,) = replayed(logs, 6, 3), replayed(logs, 6)
    assert released.same
    assert again.same
    assert released.event.digest != again.event.digest


def test_logs_of_a_run_survive_their_bytes() -> None:
    content = to_bytes(run())
    logs = from_bytes(content)
    assert to_bytes(logs) == content
    assert all(one.same for step in range(STEPS) for one in replayed(logs, step))


def test_settings_that_did_not_make_the_choice_are_noticed() -> None:
    """The comparison can fail: by another seed other groups would have been drawn."""

    def seeded(event: BatchServed) -> BatchServed:
        choosing = replace(Choosing.of_record(event.choosing), seed=1)
        return replace(event, choosing=choosing.recorded())

    logs = changed_choices(seeded)
    assert not all(replayed(logs, step)[0].same for step in range(STEPS))


@pytest.mark.parametrize("name", sorted(set(chain.from_iterable(SETTINGS)) - DROPPING))
def test_every_setting_had_a_part_in_a_choice(name: str) -> None:
    def by_default(event: BatchServed) -> BatchServed:
        found = json.loads(event.choosing)
        del found[name]
        return replace(event, choosing=json.dumps(found))

    logs = changed_choices(by_default)
    with_setting = [step for step in range(STEPS) if name in SETTINGS[step // 2]]
    assert not all(replayed(logs, step)[0].same for step in with_setting)


@pytest.mark.proves("F19")
@pytest.mark.parametrize(
    "what", ["setting", "environment's setting", "value", "argument", "algorithm"]
)
def test_what_a_newer_version_chose_by_is_named_with_that_version(what: str) -> None:
    def newer(event: BatchServed) -> BatchServed:
        if what == "algorithm":
            return replace(event, algorithm=ALGORITHM + 1)
        if what == "argument":
            asked = json.loads(event.request) | {"cooling": 3}
            return replace(event, request=json.dumps(asked))
        found = json.loads(event.choosing)
        if what == "value":
            return replace(event, choosing=json.dumps(found | {"recency": "half-life"}))
        (found if what == "setting" else found["environments"][0])["cooling"] = 3
        return replace(event, choosing=json.dumps(found))

    named = {
        "algorithm": f"algorithm {ALGORITHM + 1}",
        "argument": "arguments cooling",
        "value": 'settings recency = "half-life"',
    }.get(what, "settings cooling")
    with pytest.raises(DecidedByNewer, match=rf"{named} by rollstream 9\.9\.9.*--from-files"):
        replayed(changed_choices(newer), 0)


def test_a_setting_that_was_not_there_yet_is_as_by_default() -> None:
    def older(event: BatchServed) -> BatchServed:
        found = json.loads(event.choosing)
        del found["lineage"]
        return replace(event, choosing=json.dumps(found))

    (served,) = replayed(changed_choices(older), 0)
    assert served.same
