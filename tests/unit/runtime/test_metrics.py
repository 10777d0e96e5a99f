"""What a process shows: figures, whether it is alive, and whether it is ready."""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from harness.scraping import addresses, get, scraped
from rollstream.runtime.clock import ManualClock, SystemClock
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.metrics import catalogue as of
from rollstream.runtime.metrics import server as server_module
from rollstream.runtime.metrics.liveness import HeldLock
from rollstream.runtime.metrics.metric import BUCKETS_S, Kind, Sample
from rollstream.runtime.metrics.server import MetricsServer
from rollstream.runtime.metrics.timings import Timings, timed
from rollstream.runtime.metrics.watched import LOOPBACK, Watched, expose

WAIT_S = 10.0
Show = Callable[[Watched], Callable[[], None]]


@pytest.fixture
def show() -> Iterator[Show]:
    ends = []

    def shown(watched: Watched) -> Callable[[], None]:
        ends.append(expose(LOOPBACK, 0, watched))
        return ends[-1]

    yield shown
    for end in ends:
        end()


def flushes(count: int) -> Callable[[], Iterator[Sample]]:
    return lambda: iter([of.SEALER_FLUSHES.sample(count, "math")])


def test_names_are_those_that_prometheus_asks_for_and_stand_once() -> None:
    names = [one.name for one in of.CATALOGUE]
    assert len(names) == len({*names})
    for one in of.CATALOGUE:
        assert re.fullmatch(r"rollstream_[a-z_]+[a-z]", one.name)
        assert one.name.endswith("_total") == (one.kind is Kind.COUNTER), one.name
        assert one.kind is not Kind.HISTOGRAM or one.name.endswith("_seconds"), one.name
        assert one.help[-1:] not in ("", "."), one.name


def test_no_port_is_open_while_metrics_are_off() -> None:
    end = expose(LOOPBACK, None, Watched("sealer", flushes(1)))
    assert addresses() == []
    end()


def test_a_part_is_shown_until_it_ends_and_the_last_one_closes_the_port(show: Show) -> None:
    first, second = show(Watched("a", flushes(1))), show(Watched("b", flushes(2)))
    [address] = addresses()
    name = "rollstream_sealer_flushes_total"
    assert scraped(address)[name, "math"] == 3  # One process, one series.
    first()
    values = scraped(address)
    assert values[name, "math"] == 3  # A sum that falls would look like a restart.
    assert ("rollstream_alive", "a") not in values
    second()
    assert addresses() == []
    with socket.create_server((LOOPBACK, int(address.rsplit(":", 1)[1]))):
        pass  # Nobody listens there any more.


def test_a_duration_is_in_each_bucket_from_its_own_on(show: Show) -> None:
    clock, timings = ManualClock(), Timings()
    with timed(timings.observe, clock, of.SEALER_FLUSH, "math"):
        clock.advance(0.3)
    show(Watched("sealer", timings.samples))
    values = scraped()
    name = of.SEALER_FLUSH.name
    assert values[f"{name}_count", "math"] == 1
    assert values[f"{name}_sum", "math"] == pytest.approx(0.3)
    at_most = [bound for bound in BUCKETS_S if values[f"{name}_bucket", "math", str(bound)]]
    assert at_most == [bound for bound in BUCKETS_S if bound >= 0.3]


def test_probes_name_the_part_that_hinders(show: Show) -> None:
    why = {"stalled": "", "unready": ""}
    show(Watched("sealer", flushes(1), lambda: why["stalled"], lambda: why["unready"]))
    show(Watched("gateway", flushes(1)))
    assert get("/healthz") == get("/readyz") == (200, "ok\n")
    why["unready"] = "its group gave it nothing"
    assert get("/healthz")[0] == 200
    assert get("/readyz") == (503, "sealer: its group gave it nothing\n")
    why["stalled"] = "its loop hangs"
    assert get("/healthz") == get("/readyz") == (503, "sealer: its loop hangs\n")
    values = scraped()
    assert values["rollstream_alive", "sealer"] == values["rollstream_ready", "sealer"] == 0
    assert values["rollstream_alive", "gateway"] == values["rollstream_ready", "gateway"] == 1


def test_a_part_whose_figures_fail_hides_no_other(show: Show) -> None:
    def fails() -> Iterator[Sample]:
        raise RuntimeError("the test's figures fail")

    def cannot_say() -> str:
        raise RuntimeError("the test's probe fails")

    show(Watched("sampler a", fails))
    show(Watched("gateway", flushes(1), cannot_say))
    show(Watched("sealer", flushes(4)))
    values = scraped()
    assert values["rollstream_sealer_flushes_total", "math"] == 4
    assert values["rollstream_scrape_failures_total",] == 2


def test_counts_of_a_part_whose_figures_begin_to_fail_stay(show: Show) -> None:
    timings, fails = Timings(), threading.Event()
    timings.observe(of.SEALER_FLUSH, 0.3, "math")

    def samples() -> Iterator[Sample]:
        yield of.SEALER_MEMORY.sample(7)
        yield of.SEALER_FLUSHES.sample(2, "math")
        yield from timings.samples()
        if fails.is_set():
            raise RuntimeError("the test's figures fail")

    show(Watched("sealer", samples))
    counts = ("rollstream_sealer_flushes_total", "rollstream_sealer_flush_seconds_count")
    assert [scraped()[name, "math"] for name in counts] == [2, 1]
    fails.set()
    values = scraped()
    assert [values[name, "math"] for name in counts] == [2, 1]
    assert ("rollstream_sealer_memory_bytes",) not in values


def test_an_address_that_is_taken_stops_nobody_and_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        with caplog.at_level(logging.ERROR):
            end = expose(LOOPBACK, port, Watched("sealer", flushes(1)))
        assert addresses() == []
        end()
    assert f"port {port}" in caplog.text
    assert "ROLLSTREAM_METRICS__PORT" in caplog.text


def test_a_port_that_opens_while_it_is_closed_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    opening, closing = threading.Event(), threading.Event()
    opened = MetricsServer._open

    def opens_late(self: MetricsServer, *, again: bool = False) -> None:
        if again:
            opening.set()
            assert closing.wait(WAIT_S)
            opened(self, again=True)

    monkeypatch.setattr(MetricsServer, "_open", opens_late)
    monkeypatch.setattr(server_module, "AGAIN_S", 0.0)
    server = MetricsServer(LOOPBACK, 0)
    assert opening.wait(WAIT_S)
    join = server._thread.join

    def joins() -> None:
        closing.set()
        join()

    monkeypatch.setattr(server._thread, "join", joins)
    end = threading.Thread(target=server.close, daemon=True)
    end.start()
    end.join(WAIT_S)
    assert not end.is_alive()


def test_a_request_that_comes_byte_by_byte_keeps_no_place(
    show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module._Handler, "timeout", 0.2)
    show(Watched("sealer", flushes(1)))
    [address] = addresses()
    host, _, port = address.removeprefix("http://").partition(":")
    slow = [socket.create_connection((host, int(port))) for _ in range(server_module.REQUESTS_MAX)]
    with ExitStack() as all_slow:
        for one in slow:
            all_slow.enter_context(one)
        clock = SystemClock()
        deadline = Deadline(WAIT_S, clock)
        while slow and not deadline.passed():
            for one in [*slow]:
                try:
                    one.sendall(b"G")
                except OSError:
                    slow.remove(one)
            clock.wait(threading.Event(), 0.01)
        assert not slow
        assert get("/healthz") == (200, "ok\n")


def test_other_paths_name_those_that_there_are(show: Show) -> None:
    show(Watched("sealer", flushes(1)))
    status, told = get("/")
    assert status == 404
    assert "/metrics" in told


def test_a_lock_knows_for_how_long_it_is_held() -> None:
    clock = ManualClock()
    lock = HeldLock(clock)
    clock.advance(5.0)
    assert lock.held_s() == 0.0
    with lock:
        clock.advance(7.0)
        assert lock.held_s() == 7.0
        assert not lock.acquire(blocking=False)
    assert lock.held_s() == 0.0
