"""Late scores as files: each once, whoever wrote them and was killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.failing_blobs import PassingBlobs
from harness.newer_records import NEWER_PREFIX
from harness.sealing import SealWorld
from rollstream.consumers import Sealer
from rollstream.consumers.sealing import score_files as sealing_score_files
from rollstream.consumers.sealing.score_files import EVERY_S
from rollstream.producers import ScoreProducer
from rollstream.schemas.ids import PartitionAddress
from rollstream.store import (
    BlobInfo,
    Blobs,
    Bytes,
    CorruptFile,
    NewerFile,
    Pieces,
    StoreError,
    score_files,
)
from rollstream.store.layout import score_range_in, scores_of, scores_path, scores_prefix
from rollstream.store.score_files import (
    VERSION,
    VERSION_KEY,
    PartitionScores,
    list_files,
    read_in_turn,
)
from rollstream.store.scores import open_scores

ADDRESS = PartitionAddress("math", 1, 0)
GROUP = "0f" * 16
pytestmark = pytest.mark.proves("A18")


@pytest.fixture
def world() -> Iterator[SealWorld]:
    with SealWorld(partitions=1) as made:
        yield made


def score(world: SealWorld, *rewards: float, uid: str = "u", attempt: str = "") -> None:
    with ScoreProducer(environment="math", scorer="tests", broker=world.broker) as producer:
        for reward in rewards:
            producer.publish(
                rollout_uid=uid,
                reward=reward,
                rewards={"style": 0.5},
                flags=["slow"],
                attempt=attempt,
            )


def passing(world: SealWorld, sealer: Sealer, seconds: float) -> None:
    """Lets a minute or more pass; the sealer first does all that is to be done now."""
    world.run(sealer, seconds=5.0)
    world.run_now_and_then(sealer, seconds=seconds - 5.0)


def written(world: SealWorld) -> None:
    """What is in the log is in files."""
    with world.sealer() as sealer:
        passing(world, sealer, EVERY_S + 5.0)


def rows(world: SealWorld) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = open_scores(world.blobs, "math").to_pylist()
    return found


def paths(world: SealWorld) -> list[str]:
    return [blob.path for blob in world.blobs.list(scores_of("math", 1))]


def test_sealers_write_each_score_once_and_readers_count_versions(world: SealWorld) -> None:
    score(world, 1.0, 1.0, 2.0)
    written(world)
    score(world, 3.0, uid="v")
    score(world, 4.0)
    written(world)
    written(world)
    found = rows(world)
    assert [(row["rollout_uid"], row["reward"], row["version"]) for row in found] == [
        ("u", 1.0, 1),
        ("u", 1.0, None),
        ("u", 2.0, 2),
        ("v", 3.0, 1),
        ("u", 4.0, 3),
    ]
    assert [row["log_offset"] for row in found] == list(range(5))
    assert found[0]["rewards"] == [("style", 0.5)]
    assert (found[0]["flags"], found[0]["scorer"]) == (["slow"], "tests")
    assert paths(world) == [scores_path(ADDRESS, 0, 3), scores_path(ADDRESS, 3, 5)]


def test_a_whole_group_is_one_record_of_several_rows(world: SealWorld) -> None:
    with ScoreProducer(environment="math", scorer="tests", broker=world.broker) as producer:
        producer.upsert_scores(GROUP, {"a": 1.0, "b": 0.0}, attempt="1")
        producer.upsert_scores(GROUP, {"a": 0.5, "b": 0.5}, attempt="1")
        producer.publish(group_id=GROUP, reward=7.0)
    written(world)
    found = [(r["group_id"], r["rollout_uid"], r["reward"], r["version"]) for r in rows(world)]
    assert found == [
        (GROUP, "a", 1.0, 1),
        (GROUP, "b", 0.0, 1),
        (GROUP, "a", 0.5, None),
        (GROUP, "b", 0.5, None),
        (GROUP, "", 7.0, 2),
    ]


def test_files_that_overlap_give_each_score_once(world: SealWorld) -> None:
    score(world, 1.0, 2.0)
    written(world)
    (first,) = paths(world)
    held = world.blobs.read(first)
    world.blobs.delete(first)
    score(world, 3.0)
    written(world)  # As a writer does that does not see the other's file.
    world.blobs.create(first, held)
    assert len(paths(world)) == 2
    assert [row["reward"] for row in rows(world)] == [1.0, 2.0, 3.0]
    assert PartitionScores(world.blobs, ADDRESS, 0.0).stop == 3


def test_a_file_that_was_lost_is_written_again(world: SealWorld) -> None:
    for reward in (1.0, 2.0):
        score(world, reward)
        written(world)
    world.blobs.delete(paths(world)[0])
    assert rows(world) == []  # Behind a gap nobody knows versions.
    written(world)
    assert [row["version"] for row in rows(world)] == [1, 2]


class Killed(BaseException):
    """The end of a simulated process."""


class DyingBlobs(PassingBlobs):
    """Ends the process where a file of scores is written: before that, or ``after`` it."""

    def __init__(self, inner: Blobs, *, after: bool) -> None:
        super().__init__(inner)
        self._after = after

    def replace(self, path: str, data: Bytes | Pieces) -> None:
        if not path.startswith("scores/"):
            return super().replace(path, data)
        if self._after:
            super().replace(path, data)
        raise Killed


@pytest.mark.parametrize("after", [False, True])
def test_a_sealer_that_is_killed_while_it_writes_leaves_each_score_once(
    world: SealWorld, after: bool
) -> None:
    score(world, 1.0, 2.0)
    dying = world.sealer(store=DyingBlobs(world.blobs, after=after))
    with pytest.raises(Killed):
        world.run(dying, seconds=5.0)
    with suppress(Killed):  # It only leaves its group.
        dying.close()
    assert len(paths(world)) == after
    score(world, 3.0)
    written(world)
    assert [row["reward"] for row in rows(world)] == [1.0, 2.0, 3.0]


def test_what_is_new_is_written_when_a_sealer_adopts_and_when_it_closes(world: SealWorld) -> None:
    score(world, 1.0)
    sealer = world.sealer()
    world.run(sealer, seconds=5.0)
    assert paths(world) == [scores_path(ADDRESS, 0, 1)]
    score(world, 2.0)
    world.run(sealer, seconds=5.0)
    assert len(paths(world)) == 1
    sealer.close()
    assert paths(world) == [scores_path(ADDRESS, 0, 1), scores_path(ADDRESS, 1, 2)]
    assert [row["log_offset"] for row in rows(world)] == [0, 1]


class CountingBlobs(PassingBlobs):
    """Knows which files were read, and what was listed."""

    def __init__(self, inner: Blobs) -> None:
        super().__init__(inner)
        self.read_paths: list[str] = []
        self.listed: list[str] = []

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[BlobInfo]:
        self.listed.append(prefix)
        return super().list(prefix, after=after, limit=limit)

    def read(self, path: str) -> bytes:
        self.read_paths.append(path)
        return super().read(path)


def test_many_small_files_are_rolled_up_and_opened_no_more(
    world: SealWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score_files, "ROLLED_TOGETHER", 4)
    monkeypatch.setattr(score_files, "FILE_RECORDS_MAX", 6)
    with world.sealer() as sealer:
        for number in range(15):
            score(world, float(number))
            passing(world, sealer, EVERY_S)
    counting = CountingBlobs(world.blobs)
    table = open_scores(counting, "math")
    assert table["reward"].to_pylist() == [float(number) for number in range(15)]
    assert table["version"].to_pylist() == [*range(1, 16)]
    opened = [score_range_in(path) for path in counting.read_paths]
    assert opened == [(0, 6), (6, 12), (12, 13), (13, 14), (14, 15)]
    for path in paths(world):
        if path not in counting.read_paths:
            world.blobs.delete(path)
    assert len(rows(world)) == 15


@pytest.mark.parametrize("anew", [1, 3, 5])
@pytest.mark.parametrize("running", [False, True])
def test_of_a_log_of_scores_that_was_made_anew_nothing_is_written(
    world: SealWorld, running: bool, anew: int
) -> None:
    score(world, 1.0, 2.0, 3.0)
    sealer = world.sealer()
    world.run(sealer, seconds=5.0)
    if not running:
        sealer.close()
        sealer = world.sealer()
    world.logs.cut_back(world.layout.scores_log(ADDRESS), 0)
    score(world, *([7.0] * anew))
    passing(world, sealer, EVERY_S + 5.0)
    assert "restore" in next(iter(sealer.stats().partitions)).scores_aside
    sealer.close()
    assert [row["reward"] for row in rows(world)] == [1.0, 2.0, 3.0]


def test_a_log_of_scores_that_lost_its_beginning_ends_no_sealer(world: SealWorld) -> None:
    score(world, 1.0, 2.0)
    with world.sealer() as sealer:
        world.run(sealer, seconds=5.0)
        score(world, 3.0, 4.0)
        world.logs.drop_before(world.layout.scores_log(ADDRESS), 3)
        passing(world, sealer, EVERY_S + 5.0)
        assert "holds [3, 4)" in next(iter(sealer.stats().partitions)).scores_aside
    assert [row["reward"] for row in rows(world)] == [1.0, 2.0]


def small_files(world: SealWorld, sealer: Sealer, count: int, **said: Any) -> None:
    for number in range(count):
        score(world, float(number), **said)
        passing(world, sealer, EVERY_S)


def test_a_damaged_file_is_written_anew_from_the_log(
    world: SealWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(score_files, "ROLLED_TOGETHER", 4)
    with world.sealer() as sealer:
        small_files(world, sealer, 3)
        before = world.blobs.read(scores_path(ADDRESS, 1, 2))
        world.blobs.replace(scores_path(ADDRESS, 1, 2), b"damaged")
        with pytest.raises(CorruptFile, match=f"{scores_path(ADDRESS, 1, 2)}.*delete it"):
            rows(world)
        small_files(world, sealer, 3)
    assert world.blobs.read(scores_path(ADDRESS, 1, 2)) == before
    assert scores_path(ADDRESS, 0, 5) in paths(world)
    assert [row["version"] for row in rows(world)] == [1, 2, 3, 4, 5, 6]
    assert caplog.text.count("written anew") == 1


def test_a_damaged_file_that_the_log_no_longer_has_is_left_out(
    world: SealWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(score_files, "ROLLED_TOGETHER", 4)
    with world.sealer() as sealer:
        small_files(world, sealer, 3)
        world.blobs.replace(scores_path(ADDRESS, 1, 2), b"damaged")
        world.logs.drop_before(world.layout.scores_log(ADDRESS), 2)
        small_files(world, sealer, 5)
    assert caplog.text.count("cannot be written anew") == 1
    assert scores_path(ADDRESS, 2, 6) in paths(world)
    with pytest.raises(CorruptFile, match=scores_path(ADDRESS, 1, 2)):
        rows(world)


def test_what_one_partition_cannot_write_ends_no_other(caplog: pytest.LogCaptureFixture) -> None:
    with SealWorld(partitions=2) as world:
        uids = [world.key_in(number, "u") for number in range(2)]
        for uid in uids:
            score(world, 1.0, uid=uid)
        refusing = RefusingBlobs(world.blobs, "partition=0/")
        with world.sealer(store=refusing) as sealer:
            world.run(sealer, seconds=5.0)
        assert [row["rollout_uid"] for row in rows(world)] == uids[1:]


def test_readers_take_what_a_damaged_or_deleted_file_had_from_another(world: SealWorld) -> None:
    for reward in (1.0, 2.0):
        score(world, reward)
        written(world)
    rolling = RollingBlobs(world.blobs)
    assert [row["reward"] for row in open_scores(rolling, "math").to_pylist()] == [1.0, 2.0]
    assert paths(world) == [rolling.longer]
    table = pq.read_table(BytesIO(world.blobs.read(rolling.longer)))
    for at in range(2):
        pq.write_table(table[at : at + 1], out := BytesIO())
        world.blobs.create(scores_path(ADDRESS, at, at + 1), out.getvalue())
    world.blobs.replace(rolling.longer, b"damaged")
    assert [row["reward"] for row in rows(world)] == [1.0, 2.0]


class RollingBlobs(PassingBlobs):
    """Where files are rolled up and deleted between a reader's listing and its first read."""

    longer = scores_path(ADDRESS, 0, 2)

    def read(self, path: str) -> bytes:
        small = [scores_path(ADDRESS, at, at + 1) for at in range(2)]
        if path == small[0]:
            tables = [pq.read_table(BytesIO(self.inner.read(one))) for one in small]
            pq.write_table(pa.concat_tables(tables), out := BytesIO())
            self.inner.create(self.longer, out.getvalue())
            for one in small:
                self.inner.delete(one)
        return super().read(path)


def test_scores_that_were_deleted_before_a_file_had_them_are_told_once(
    world: SealWorld, caplog: pytest.LogCaptureFixture
) -> None:
    score(world, 1.0, 2.0)
    where = world.layout.scores_log(ADDRESS)
    world.logs.drop_before(where, world.logs.bounds(where)[1])
    with world.sealer() as sealer:
        world.run_now_and_then(sealer, seconds=3 * EVERY_S)
    (told,) = [one for one in caplog.messages if "no file has them" in one]
    assert told.startswith(f"{where}: retention deleted the scores up to offset 2")


def test_no_scores_are_told_as_deleted_where_the_log_holds_what_is_none(
    world: SealWorld, caplog: pytest.LogCaptureFixture
) -> None:
    where = world.layout.scores_log(ADDRESS)
    world.logs.append(where, None, b"no score")
    with world.sealer() as sealer:
        world.run_now_and_then(sealer, seconds=3 * EVERY_S)
    assert any("is no score" in one for one in caplog.messages)
    assert not any("no file has them" in one for one in caplog.messages)


@pytest.mark.proves("F24")
def test_scores_before_a_newer_record_have_files_and_status_learns_why_no_others_do(
    world: SealWorld,
) -> None:
    score(world, 1.0, 2.0)
    written(world)
    score(world, 3.0)
    world.logs.append(world.layout.scores_log(ADDRESS), None, NEWER_PREFIX)
    score(world, 4.0)
    for _ in range(2):  # A restart changes nothing.
        with world.sealer() as sealer:
            passing(world, sealer, EVERY_S + 5.0)
            assert [row["reward"] for row in rows(world)] == [1.0, 2.0, 3.0]
            (aside,) = [one.scores_aside for one in sealer.stats().partitions]
            assert "upgrade this process" in aside


def test_files_are_listed_once_and_superseded_ones_deleted_after_a_while(
    world: SealWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score_files, "ROLLED_TOGETHER", 4)
    monkeypatch.setattr(score_files, "LIST_EVERY_S", 600.0)
    counting = CountingBlobs(world.blobs)
    with world.sealer(store=counting) as sealer:
        small_files(world, sealer, 6)
        assert counting.listed.count(scores_prefix(ADDRESS)) == 1
        passing(world, sealer, 600.0)
        assert len(paths(world)) == 7  # Readers may have listed these.
        passing(world, sealer, 600.0 + EVERY_S)
    assert paths(world) == [scores_path(ADDRESS, *at) for at in ((0, 4), (4, 5), (5, 6))]
    assert [row["version"] for row in rows(world)] == [1, 2, 3, 4, 5, 6]


class BrokenBlobs(PassingBlobs):
    """A defect of ours, where a file of scores is written."""

    def replace(self, path: str, data: Bytes | Pieces) -> None:
        if path.startswith("scores/"):
            raise ZeroDivisionError
        super().replace(path, data)


def test_an_error_that_nobody_expects_ends_the_sealer(world: SealWorld) -> None:
    score(world, 1.0)
    sealer = world.sealer(store=BrokenBlobs(world.blobs))
    with pytest.raises(ZeroDivisionError):
        world.run(sealer, seconds=5.0)
    with pytest.raises(ZeroDivisionError):
        sealer.close()


def test_a_store_that_refuses_is_asked_again(world: SealWorld) -> None:
    score(world, 1.0)
    refusing = RefusingBlobs(world.blobs, "scores/")
    with world.sealer(store=refusing) as sealer:
        world.run(sealer, seconds=5.0)
        assert paths(world) == []
        refusing.refuses = False
        passing(world, sealer, EVERY_S)
        assert paths(world) == [scores_path(ADDRESS, 0, 1)]


class RefusingBlobs(PassingBlobs):
    """Where files of scores cannot be written, for a while."""

    def __init__(self, inner: Blobs, part: str) -> None:
        super().__init__(inner)
        self._part = part
        self.refuses = True

    def replace(self, path: str, data: Bytes | Pieces) -> None:
        if self.refuses and self._part in path:
            raise StoreError("no space is left")
        super().replace(path, data)


def test_records_of_many_bytes_fill_more_files(
    world: SealWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (score_files, sealing_score_files):
        monkeypatch.setattr(module, "FILE_BYTES_MAX", 1_000)
    monkeypatch.setattr(score_files, "ROLLED_TOGETHER", 2)
    for number in range(6):
        score(world, float(number), attempt=400 * "a")
    with world.sealer() as sealer:
        passing(world, sealer, 4 * EVERY_S)
        assert paths(world) == [scores_path(ADDRESS, *at) for at in ((0, 3), (3, 6))]
        small_files(world, sealer, 4, attempt=600 * "b")
    joined = [read.path for read in read_in_turn(list_files(world.blobs, ADDRESS))]
    assert joined == [scores_path(ADDRESS, *at) for at in ((0, 3), (3, 6), (6, 8), (8, 10))]
    assert [row["log_offset"] for row in rows(world)] == list(range(10))


@pytest.mark.parametrize("lacks", ["reward", "log_entry"])
def test_a_file_of_a_newer_version_is_not_damaged_and_stays_as_it_is(
    world: SealWorld, lacks: str
) -> None:
    score(world, 1.0)
    written(world)
    (path,) = paths(world)
    table = pq.read_table(BytesIO(world.blobs.read(path)))
    newer = table.drop_columns([lacks]).replace_schema_metadata({VERSION_KEY: b"2"})
    pq.write_table(newer, out := BytesIO())
    world.blobs.replace(path, out.getvalue())
    with pytest.raises(NewerFile, match=f"{path} has scores of version 2.*upgrade"):
        rows(world)
    score(world, 2.0)
    written(world)
    assert world.blobs.read(path) == out.getvalue()
    assert paths(world) == [path]


@pytest.mark.parametrize("metadata", [None, {VERSION_KEY: VERSION}])
def test_files_without_a_version_and_with_more_columns_are_read(
    world: SealWorld, metadata: dict[bytes, bytes] | None
) -> None:
    score(world, 1.0)
    written(world)
    (path,) = paths(world)
    table = pq.read_table(BytesIO(world.blobs.read(path)))
    more = table.append_column("new", pa.array([5])).replace_schema_metadata(metadata)
    pq.write_table(more, out := BytesIO())
    world.blobs.replace(path, out.getvalue())
    score(world, 2.0)
    written(world)
    assert [row["reward"] for row in rows(world)] == [1.0, 2.0]


def test_without_scores_there_are_no_files(world: SealWorld) -> None:
    written(world)
    assert paths(world) == []
    assert open_scores(world.blobs, "math").num_rows == 0
