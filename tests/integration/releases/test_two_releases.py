"""Two releases with different schemas over the same logs and files, in processes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harness.releases import Release, first_release, second_release, third_release

EVERYTHING = {
    "segment_idx": 0,
    "prefix_hash": "0" * 32,
    "messages": '[{"role":"user","content":"2+2?"}]',
    "rewards": {"format": 0.5},
    "old_logprobs": [-0.25, -0.5, -0.75],
    "ref_logprobs": [-1.0, -2.0, -3.0],
    "token_rewards": [0.0, 0.0, 1.0],
    "token_arrays": {"experts": [[1, 2], [3, 4], [5, 6]]},
}
ADDED = {"region": "eu", "sampler_seed": 11, "notes": "café", "entropies": [0.5, 0.25, 0.125]}
DEFAULTS = {"region": "nowhere", "sampler_seed": 7, "notes": "", "entropies": None}


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    release = first_release(tmp_path_factory.mktemp("releases") / "older")
    yield release
    release.close()


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    release = second_release(tmp_path_factory.mktemp("releases") / "newer")
    yield release
    release.close()


def group(name: str, *numbers: int, **fields: Any) -> list[dict[str, Any]]:
    """Members of a group of two."""
    return [
        {"rollout_uid": f"{name}-{i}", "group_uid": name, "group_size": 2, **fields}
        for i in numbers or (0, 1)
    ]


def holds(release: Release, shared: Path) -> None:
    """The audit, with every row's digest."""
    done = release.run(shared, "command", arguments=["audit", "--digests"])
    assert (done["exit_code"], "the audit holds" in done["stdout"]) == (0, True), done


@pytest.mark.proves("F19")
def test_after_an_upgrade_everything_is_read_and_every_digest_holds(
    older: Release, newer: Release, tmp_path: Path
) -> None:
    older.run(tmp_path, "publish", rollouts=group("plain"))
    older.run(tmp_path, "publish", rollouts=group("whole", **EVERYTHING))
    assert older.run(tmp_path, "seal")["groups"] == 2
    first = older.run(tmp_path, "serve", step=0, groups=1)
    assert "uids" in first, first
    before = older.run(tmp_path, "manifests")
    # Pending while the sealer is upgraded; of the mixed group each release publishes one member.
    older.run(tmp_path, "publish", rollouts=group("late", **EVERYTHING))
    older.run(tmp_path, "publish", rollouts=group("mixed", 0, **EVERYTHING))
    holds(older, tmp_path)

    holds(newer, tmp_path)
    replayed = newer.run(tmp_path, "replayed", step=0)
    assert replayed == {"again": [True], "files": True}
    after = newer.run(tmp_path, "manifests")
    assert [row["digests"] for row in after] == [row["digests"] for row in before]
    assert [row["region"] for row in after] == ["nowhere"] * len(before)

    newer.run(tmp_path, "publish", rollouts=group("mixed", 1, **ADDED))
    newer.run(tmp_path, "publish", rollouts=group("new", **ADDED))
    assert newer.run(tmp_path, "seal")["groups"] == 3
    holds(newer, tmp_path)
    assert {row["region"] for row in newer.run(tmp_path, "manifests")} == {"nowhere", "eu"}

    second = newer.run(tmp_path, "serve", step=1, groups=4, checkpointed=0)
    assert "uids" in second, second
    names = ("plain", "whole", "late", "mixed", "new")
    uids = {f"{name}-{i}" for name in names for i in range(2)}
    assert {*first["uids"], *second["uids"]} == uids
    assert not {*first["uids"]} & {*second["uids"]}
    for uid, record in second["records"].items():
        expected = ADDED if uid in ("mixed-1", "new-0", "new-1") else DEFAULTS
        assert {name: record[name] for name in ADDED} == expected, uid
        assert record["site"] == "nowhere", "no producer gives it"
        if uid.startswith("late"):
            assert record["rewards"] == {"format": 0.5}, "behind what was removed"
    replayed = newer.run(tmp_path, "replayed", step=1)
    assert replayed == {"again": [True], "files": True}

    rows = newer.run(tmp_path, "dataset")
    assert {*rows} == uids
    assert rows["whole-0"]["prefix_hash"] == "0" * 32, "it was sealed with it"
    assert rows["new-0"] == {**rows["new-0"], **ADDED, "prefix_hash": None}
    assert rows["plain-0"]["region"] is None, "the file is older than the column"
    assert rows["late-0"]["region"] == "nowhere", "the file is not"


@pytest.mark.proves("F19")
def test_records_of_newer_producers_wait_and_are_sealed_whole_after_the_upgrade(
    older: Release, newer: Release, tmp_path: Path
) -> None:
    older.run(tmp_path, "publish", rollouts=group("mixed", 0))
    newer.run(tmp_path, "publish", rollouts=group("mixed", 1, **ADDED))
    older.run(tmp_path, "publish", rollouts=group("behind"))
    stopped = older.run(tmp_path, "seal")
    assert stopped["groups"] == 0
    (aside,) = stopped["aside"]
    assert (
        "[0], offset 1: a newer producer wrote this record, with ingest_record version 4" in aside
    )
    assert "rollstream 0.1.0 knows 3 and older. Upgrade the sealers first" in aside
    holds(older, tmp_path)
    assert newer.run(tmp_path, "seal") == {"segments": 4, "groups": 2, "aside": []}
    holds(newer, tmp_path)
    batch = newer.run(tmp_path, "serve", step=0, groups=2)
    assert {*batch["uids"]} == {"mixed-0", "mixed-1", "behind-0", "behind-1"}


@pytest.mark.proves("F19")
def test_dead_letters_of_newer_producers_come_back_after_the_upgrade(
    older: Release, newer: Release, tmp_path: Path
) -> None:
    older.run(tmp_path, "publish", rollouts=group("old"))
    newer.run(tmp_path, "publish", rollouts=group("new", **ADDED))
    stopped = older.run(tmp_path, "seal")
    assert (stopped["groups"], len(stopped["aside"])) == (0, 1)
    assert older.run(tmp_path, "seal", dead_letter=True)["groups"] == 1
    holds(older, tmp_path)
    listed = older.run(tmp_path, "command", arguments=["deadletters", "list"])
    assert "unknown_schema" in listed["stdout"]
    retry = ["deadletters", "retry", "--reason", "unknown_schema"]
    refused = older.run(tmp_path, "command", arguments=retry)
    assert (refused["exit_code"], "0 entries published" in refused["stdout"]) == (1, True)
    assert newer.run(tmp_path, "seal")["groups"] == 0, "it was settled"
    for published in (2, 0):  # Twice counts once.
        done = newer.run(tmp_path, "command", arguments=retry)
        assert done["exit_code"] == 0
        assert f"{published} entries published" in done["stdout"]
    assert newer.run(tmp_path, "seal")["groups"] == 1
    holds(newer, tmp_path)
    batch = newer.run(tmp_path, "serve", step=0, groups=2)
    assert {*batch["uids"]} == {"old-0", "old-1", "new-0", "new-1"}
    assert batch["records"]["new-0"]["notes"] == ADDED["notes"]


@pytest.mark.proves("F19", "F24")
def test_readers_stop_at_a_newer_event_of_a_partition_and_say_which_release_reads_it(
    older: Release, newer: Release, tmp_path: Path
) -> None:
    older.run(tmp_path, "publish", rollouts=group("old"))
    older.run(tmp_path, "seal")
    newer.run(tmp_path, "publish", rollouts=group("new"))
    newer.run(tmp_path, "seal")
    ends = older.run(tmp_path, "ends")
    claimed = "the log was claimed last by 'sealer-a', rollstream 0.2.0"
    sentence = (
        f"rollstream 0.1.0 cannot read it ({claimed}). Where a newer version wrote it, upgrade"
    )
    stopped = older.run(tmp_path, "serve", step=0, groups=2)
    assert stopped["error"] == "NotEnoughGroups", stopped
    (aside,) = older.run(tmp_path, "seal")["aside"]
    audited = older.run(tmp_path, "command", arguments=["audit"])
    assert audited["exit_code"] == 1
    looked = older.run(tmp_path, "command", arguments=["status", "--check"])
    assert looked["exit_code"] == 2
    for told in (stopped["message"], aside, audited["stdout"], looked["stdout"]):
        assert "groups.math" in told
        assert sentence in " ".join(told.split())
    now = older.run(tmp_path, "ends")
    assert {log: end for log, end in now.items() if "groups" in log} == {
        log: end for log, end in ends.items() if "groups" in log
    }, "the newer sealer was not fenced"
    assert len(newer.run(tmp_path, "serve", step=0, groups=2)["uids"]) == 4


@pytest.mark.proves("F19", "F24")
def test_an_older_sampler_does_not_take_over_from_a_newer_one(
    older: Release, newer: Release, tmp_path: Path
) -> None:
    older.run(tmp_path, "publish", rollouts=[*group("a"), *group("b")])
    older.run(tmp_path, "seal")
    newer.run(tmp_path, "serve", step=0, groups=1)
    ends = older.run(tmp_path, "ends")
    stopped = older.run(tmp_path, "serve", step=1, groups=1, checkpointed=0)
    assert stopped["error"] == "NewerEvent"
    assert "rollstream 0.2.0). Where a newer version wrote it, upgrade" in stopped["message"]
    assert older.run(tmp_path, "ends") == ends
    assert len(newer.run(tmp_path, "serve", step=1, groups=1, checkpointed=0)["uids"]) == 2


@pytest.mark.proves("F24")
def test_an_older_sampler_stops_for_its_own_log_alone_and_status_names_it(
    older: Release, newer: Release, tmp_path: Path
) -> None:
    """The newer sampler beside it goes on, as does an older one of another name."""
    older.run(tmp_path, "publish", rollouts=[*group("a"), *group("b")])
    older.run(tmp_path, "seal")
    newer.run(tmp_path, "serve", step=0, groups=1)
    assert older.run(tmp_path, "serve", step=1, groups=1)["error"] == "NewerEvent"
    assert len(older.run(tmp_path, "serve", step=0, groups=2, sampler="trainer-b")["uids"]) == 4
    looked = older.run(tmp_path, "command", arguments=["status", "--check"])
    told = " ".join(looked["stdout"].split())
    assert looked["exit_code"] == 2
    assert "trainer-a decides nothing, since its log cannot be read" in told
    assert "rollstream 0.2.0). Where a newer version wrote it, upgrade" in told
    assert "trainer-b decides nothing" not in told
    assert newer.run(tmp_path, "command", arguments=["status", "--check"])["exit_code"] == 0
    assert len(newer.run(tmp_path, "serve", step=1, groups=1, checkpointed=0)["uids"]) == 2


@pytest.mark.proves("F19")
def test_files_of_newer_rows_are_not_called_damaged(tmp_path: Path) -> None:
    """Of releases whose events are the same, so that only the files tell."""
    shared = tmp_path / "shared"
    shared.mkdir()
    older = Release(tmp_path / "older", "0.1.0", {}, {})
    with closing(older), closing(third_release(tmp_path / "newer")) as newer:
        newer.run(shared, "publish", rollouts=group("new", **ADDED))
        newer.run(shared, "seal")
        stopped = older.run(shared, "serve", step=0, groups=1)
        assert stopped["error"] == "NewerFile", stopped
        assert "rollstream 0.3.0 wrote it, with rows of ingest_record.v4" in stopped["message"]
        assert len(newer.run(shared, "serve", step=0, groups=1)["uids"]) == 2
