"""What sealers report of producers and of what they have begun."""

from __future__ import annotations

import pickle
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from harness.in_flight import report
from rollstream.schemas.events import PartitionReport, ProducerInFlight
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.in_flight import (
    SILENT_AFTER_S,
    SILENT_UNTOLD_AFTER_S,
    InFlightGroups,
    ProducerStanding,
)
from rollstream.streams.folds.reported import ReportedNow

LOGS = [
    PartitionAddress("math", 1, 0),
    PartitionAddress("math", 1, 1),
    PartitionAddress("code", 1, 0),
]
LOG = LOGS[0]
NOW = 1_000_000_000
SECOND = 1_000_000
SILENT = round(SILENT_AFTER_S) * SECOND
UNTOLD = round(SILENT_UNTOLD_AFTER_S) * SECOND


def said(
    name: str, open_groups: int, *, begun: int = 1, waiting: int = 0, last_ts: int = NOW
) -> ProducerInFlight:
    return ProducerInFlight(name, begun, open_groups, waiting, last_ts)


def reported(
    *producers: ProducerInFlight, now_ts: int = NOW, complete: bool = False
) -> PartitionReport:
    return report(*producers, now_ts=now_ts, complete=complete)


def folded(*events: tuple[PartitionAddress, PartitionReport]) -> InFlightGroups:
    now = ReportedNow()
    for log, event in events:
        now.apply(log, event)
    return now.in_flight


def opened(groups: InFlightGroups, now_ts: int = NOW) -> dict[str, int]:
    """Of producers of math."""
    return {one.producer_id: one.open for one in groups.standings("math", now_ts)}


def test_a_producer_keeps_its_figures_until_an_event_names_it_again() -> None:
    groups = folded(
        (LOG, reported(said("b", 2, begun=5, waiting=3), said("a", 1))),
        (LOG, reported(said("a", 0, begun=2))),
        (LOG, reported()),
    )
    assert groups.standings("math", NOW) == [
        ProducerStanding("a", begun=2, open=0, waiting=0),
        ProducerStanding("b", begun=5, open=2, waiting=3),
    ]


def test_over_partitions_open_groups_add_up_and_the_newest_wait_and_most_begun_hold() -> None:
    groups = folded(
        (LOGS[0], reported(said("a", 2, begun=7, waiting=0, last_ts=NOW + 1))),
        (LOGS[1], reported(said("a", 1, begun=6, waiting=4, last_ts=NOW))),
        (LOGS[2], reported(said("a", 9, begun=9, waiting=9, last_ts=NOW + 2))),
    )
    assert groups.standings("math", NOW) == [ProducerStanding("a", begun=7, open=3, waiting=0)]


def test_a_producer_counts_until_it_was_silent_on_every_partition() -> None:
    late = NOW + 3 * SILENT
    groups = folded(
        (LOGS[0], reported(said("a", 2), said("b", 1))),
        (LOGS[1], reported(said("a", 0, last_ts=NOW + SILENT))),
        *((log, reported(said("c", 0, last_ts=NOW - SILENT), now_ts=late)) for log in LOGS[:2]),
    )
    assert opened(groups, NOW + SILENT - 1) == {"a": 2, "b": 1}
    assert opened(groups, NOW + SILENT) == {"a": 2}
    assert opened(groups, NOW + 2 * SILENT) == {}


def test_while_no_sealer_tells_of_any_producer_nobody_is_silent() -> None:
    """All sealers died: what was in flight still is, as far as anybody knows."""
    late = NOW + 10 * SILENT
    events: list[tuple[PartitionAddress, PartitionReport]] = [
        (LOG, reported(said("a", 2))),
        (LOGS[2], reported(said("other", 1, last_ts=late), now_ts=late)),
    ]
    assert opened(folded(*events), late) == {"a": 2}
    events.append((LOG, reported(said("b", 1, last_ts=late), now_ts=late)))
    assert opened(folded(*events), late) == {"b": 1}


def test_nobody_is_silent_on_a_partition_of_which_nobody_tells_while_its_sealer_may_be_dead() -> (
    None
):
    """Both live: ``a`` says so where the sealer died, and wrote something elsewhere since."""
    events: list[tuple[PartitionAddress, PartitionReport]] = [
        (LOGS[0], reported(said("a", 2), said("dead", 1, last_ts=NOW - SILENT), now_ts=NOW)),
        (LOGS[1], reported(said("a", 0, last_ts=NOW + 1))),
    ]
    for second in range(1, 30):
        at = NOW + second * SECOND
        events.append((LOGS[1], reported(said("b", 1, last_ts=at), now_ts=at)))
        found = opened(folded(*events), at)
        assert found == ({"a": 2, "b": 1} if at < NOW + UNTOLD else {"b": 1})
    # Where another sealer tells of the partition, that is what is known of it.
    events.insert(2, (LOGS[0], reported(complete=True, now_ts=NOW + SILENT)))
    assert opened(folded(*events[:-10]), NOW + 19 * SECOND) == {"b": 1}
    events[2] = LOGS[0], reported(said("a", 2, last_ts=NOW + SILENT), now_ts=NOW + SILENT + 1)
    assert opened(folded(*events[:-10]), NOW + 19 * SECOND) == {"a": 2, "b": 1}


def test_what_was_said_too_long_ago_is_left_out_where_that_is_asked_for() -> None:
    groups = folded((LOG, reported(said("a", 2), said("b", 1, last_ts=NOW + 1))))
    late = NOW + 10 * SILENT
    assert [one.producer_id for one in groups.standings("math", late, NOW)] == ["a", "b"]
    assert [one.producer_id for one in groups.standings("math", late, NOW + 1)] == ["b"]
    assert groups.standings("math", late, NOW + 2) == []


def test_what_an_earlier_owner_reported_and_a_new_owner_does_not_name_is_open_no_more() -> None:
    groups = folded(
        (LOGS[0], reported(said("a", 2, begun=8), said("b", 1))),
        (LOGS[1], reported(said("a", 1))),
        (LOGS[0], reported(said("b", 3), complete=True)),
    )
    assert opened(groups) == {"a": 1, "b": 3}
    assert groups.standings("math", NOW)[0].begun == 8


def test_what_a_producer_said_last_holds_where_a_new_owner_knows_only_earlier_things() -> None:
    groups = folded(
        (LOG, reported(said("a", 2, begun=8, waiting=1, last_ts=NOW + SILENT))),
        (LOG, reported(said("a", 1, begun=5, waiting=4, last_ts=NOW), complete=True)),
    )
    found = groups.standings("math", NOW + SILENT)
    assert found == [ProducerStanding("a", begun=8, open=1, waiting=1)]


def test_a_report_of_what_changed_ends_nothing_else() -> None:
    groups = folded((LOG, reported(said("a", 2))), (LOG, reported(said("b", 1))))
    assert opened(groups) == {"a": 2, "b": 1}


def test_who_was_silent_for_ten_minutes_and_has_nothing_open_takes_no_memory() -> None:
    now = ReportedNow()
    sizes = []
    for minute in range(240):
        at = NOW + minute * 60 * SECOND
        names = [f"{minute}-{number}" for number in range(10)]
        now.apply(LOG, reported(*(said(name, 0, last_ts=at) for name in names), now_ts=at))
        sizes.append(len(pickle.dumps(now)))
    assert max(sizes) < 2 * sizes[12]
    late = NOW + 300 * 60 * SECOND
    now.apply(LOG, reported(said("last", 0, last_ts=late), now_ts=late))
    assert b"239-" not in pickle.dumps(now)


def test_what_was_said_on_a_partition_long_ago_does_not_count_beside_what_is_said_now() -> None:
    late = NOW + 700 * SECOND
    groups = folded(
        (LOGS[0], reported(said("a", 0, begun=9, waiting=5))),
        (LOGS[1], reported(said("a", 1, begun=3, last_ts=late), now_ts=late)),
        (LOGS[0], reported(said("b", 0, last_ts=late), now_ts=late)),
    )
    assert groups.standings("math", late)[0] == ProducerStanding("a", begun=3, open=1, waiting=0)


def test_of_what_is_said_twice_at_one_time_the_last_report_holds() -> None:
    groups = folded((LOG, reported(said("a", 2, waiting=4))), (LOG, reported(said("a", 1))))
    assert groups.standings("math", NOW) == [ProducerStanding("a", begun=1, open=1, waiting=0)]


def test_who_has_open_groups_is_not_forgotten() -> None:
    """They come back to nothing only once the sealer says so."""
    late = NOW + 3_600 * SECOND
    groups = folded(
        (LOG, reported(said("a", 2))),
        (LOG, reported(now_ts=late)),
        (LOG, reported(said("a", 1, last_ts=late), now_ts=late)),
    )
    assert opened(groups, late) == {"a": 1}


class _Slow:
    """All events of each log, looked through from the first for each question."""

    def __init__(self, events: Iterable[tuple[PartitionAddress, PartitionReport]]) -> None:
        self._events = list(events)

    def standings(self, environment: str, now_ts: int) -> list[ProducerStanding]:
        named = {one.producer_id for _, event in self._events for one in event.producers}
        found = []
        for producer_id in sorted(named):
            logs = [log for log in LOGS if log.environment == environment]
            parts = [part for log in logs if (part := self._newest(log, producer_id))]
            now = min(now_ts, max(map(self._told_ts, logs), default=0))
            counts = (
                part.last_ts > now - SILENT
                or part.last_ts > max(now - UNTOLD, self._told_ts(log) - SILENT)
                for log in logs
                if (part := self._newest(log, producer_id))
            )
            if any(counts):
                newest = max(parts, key=lambda part: (part.last_ts, part.begun, part.waiting))
                begun, total = max(part.begun for part in parts), sum(part.open for part in parts)
                found.append(ProducerStanding(producer_id, begun, total, newest.waiting))
        return found

    def _told_ts(self, told: PartitionAddress) -> int:
        """When an event named a producer last, or any that it named said something."""
        return max(
            (
                max([event.now_ts, *(one.last_ts for one in event.producers)])
                for log, event in self._events
                if log == told
            ),
            default=0,
        )

    def _newest(self, log: PartitionAddress, producer_id: str) -> ProducerInFlight | None:
        newest = None
        for where, event in self._events:
            if where != log:
                continue
            if newest is not None and event.complete:
                newest = newest._replace(open=0)
            for one in event.producers:
                if one.producer_id == producer_id:
                    is_newer = newest is None or one.last_ts >= newest.last_ts
                    newest = (one if is_newer or newest is None else newest)._replace(open=one.open)
        return newest


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[tuple[PartitionAddress, PartitionReport]], int]:
    """Events as sealers write them, in the order of their time: nothing is said later than its
    event. And the time of the last one. What a producer began falls in short histories alone, since
    the model forgets nobody."""
    events: list[tuple[PartitionAddress, PartitionReport]] = []
    begun = dict.fromkeys("abc", 0)
    now_ts = NOW
    falls = draw(st.booleans())
    for _ in range(draw(st.integers(0, 12))):
        now_ts += (
            draw(st.sampled_from([0, 1, 6, 15] if falls else [0, 1, 6, 15, 70, 500, 700])) * SECOND
        )
        producers = []
        for name in draw(st.sets(st.sampled_from("abc"), max_size=3)):
            begun[name] = max(0, begun[name] + draw(st.integers(-1 if falls else 0, 2)))
            open_groups, waiting = draw(st.integers(0, 3)), draw(st.integers(0, 3))
            last_ts = now_ts - draw(st.sampled_from([0, 1, 1, 30])) * SECOND
            producers.append(
                said(name, open_groups, begun=begun[name], waiting=waiting, last_ts=last_ts)
            )
        event = reported(*producers, now_ts=now_ts, complete=draw(st.booleans()))
        events.append((draw(st.sampled_from(LOGS)), event))
    return events, now_ts


@given(histories(), st.sampled_from([0, 5, 7, 8, 9, 60]))
def test_standings_are_those_of_a_slow_model_whatever_the_interleaving_of_the_logs(
    history: tuple[list[tuple[PartitionAddress, PartitionReport]], int], later_s: int
) -> None:
    events, last_ts = history
    groups, model = folded(*events), _Slow(events)
    log_by_log = folded(*sorted(events, key=lambda one: one[0]))
    now_ts = last_ts + later_s * SECOND
    for environment in ("math", "code", "other"):
        found = groups.standings(environment, now_ts)
        assert found == model.standings(environment, now_ts)
        assert found == log_by_log.standings(environment, now_ts)
