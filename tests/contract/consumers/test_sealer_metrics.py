"""A sealer that shows metrics: they agree with its figures, and tell when it makes no progress."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.failing_blobs import FullBlobs, PassingBlobs
from harness.scraping import ANY_PORT, addresses, get, scraped
from harness.sealing import SealWorld
from rollstream.runtime.deadline import Deadline
from rollstream.store import Bytes, Pieces

HANG_S = 60.0


@pytest.fixture
def world() -> Iterator[SealWorld]:
    made = SealWorld(partitions=1)
    made.config = made.config.model_copy(update={"metrics": ANY_PORT})
    yield made
    made.close()
    assert addresses() == []  # Whatever a test ends, ends its port.


def test_what_is_scraped_agrees_with_stats(world: SealWorld) -> None:
    with world.sealer() as sealer:
        assert get("/readyz")[0] == 503
        for uid, example_id in (("r1", "a"), ("r2", "a"), ("r3", "b")):
            world.publish(uid, example_id=example_id)
        world.run(sealer)
        values, stats = scraped(), sealer.stats()
        assert get("/readyz") == get("/healthz") == (200, "ok\n")
    [partition] = stats.partitions
    math = stats.environments["math"]
    assert math.groups == 1
    assert math.read == 3
    for name, value in {
        "read_entries_total": math.read,
        "read_bytes_total": math.read_bytes,
        "written_bytes_total": math.written_bytes,
        "sealed_segments_total": math.segments,
        "sealed_groups_total": math.groups,
        "flushes_total": math.flushes,
        "partitions": 1,
        "flush_seconds_count": math.flushes,
        "seal_seconds_count": math.groups,
        "claim_seconds_count": 1,
    }.items():
        assert values[f"rollstream_sealer_{name}", "math"] == value, name
    for name, value in {
        "position_offset": partition.position,
        "watermark_offset": partition.watermark,
        "pending_entries": 1,
        "pending_groups": 1,
        "aside": 0,
    }.items():
        assert values[f"rollstream_sealer_{name}", "math", "0"] == value, name
    assert values["rollstream_store_call_seconds_count", "create"] >= math.flushes
    topic = world.layout.groups("math")
    assert values["rollstream_broker_append_seconds_count", topic] > math.flushes


def test_a_loop_that_does_not_come_round_is_not_alive(world: SealWorld) -> None:
    with world.sealer() as sealer:
        sealer.step(Deadline(1.0, world.clock))
        world.clock.advance(HANG_S + 1)
        status, told = get("/healthz")
        assert (status, get("/readyz")[0]) == (503, 503)
        assert "sealer: the loop has not come round for 61 s" in told
        sealer.step(Deadline(1.0, world.clock))
        assert get("/healthz")[0] == 200


class HangingBlobs(PassingBlobs):
    """Its creates end only when the test lets them."""

    def __init__(self, world: SealWorld) -> None:
        super().__init__(world.blobs)
        self.called, self.free = threading.Event(), threading.Event()

    def create(self, path: str, data: Bytes | Pieces) -> None:
        self.called.set()
        self.free.wait(HANG_S)
        super().create(path, data)


def test_a_store_that_hangs_is_named_before_the_sealer_ends(world: SealWorld) -> None:
    blobs = HangingBlobs(world)
    sealer = world.sealer(store=blobs, workers=ThreadPoolExecutor(2))
    world.publish("r1")
    world.publish("r2")
    while not blobs.called.is_set():
        sealer.step(Deadline(0.1, world.clock))
    sealer.step(Deadline(0.1, world.clock))
    assert get("/healthz")[0] == 200
    world.clock.advance(HANG_S + 1)
    sealer.step(Deadline(0.1, world.clock))  # The loop itself goes on.
    status, told = get("/healthz")
    blobs.free.set()
    sealer.close()
    assert status == 503
    assert "put_files has not ended" in told


def test_calls_of_a_store_that_fails_are_counted(world: SealWorld) -> None:
    full = FullBlobs(world.blobs)
    with world.sealer(store=full) as sealer:
        world.publish("r1")
        world.publish("r2")
        world.run(sealer)
        assert scraped()["rollstream_store_failures_total", "create"] == full.refused > 0
        full.refusing = False
        world.run(sealer, seconds=60.0)
