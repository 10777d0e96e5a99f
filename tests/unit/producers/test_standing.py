"""Who is admitted, in which order, and what is given back, against a model."""

from __future__ import annotations

from functools import partial
from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from rollstream.producers.admission.shares import Limit
from rollstream.producers.admission.standing import ALIVE_S, TELL_AGAIN_S, Request, Standing


def asked(
    standing: Standing, limit: int | None, groups: int = 1, group: str = "g", now_s: float = 0.0
) -> Request:
    request = Request(groups, group, lambda: None, now_s)
    standing.ask(request, Limit(limit), now_s)
    return request


steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, 3), st.booleans()),
        st.tuples(st.just("end"), st.integers(0, 9), st.integers(0, 3)),
        st.tuples(st.just("limit"), st.none() | st.integers(0, 12), st.just(0)),
    ),
    max_size=60,
)


@given(steps)
def test_requests_are_admitted_in_their_order_as_far_as_the_limit_goes(
    steps: list[tuple[str, int | None, int]],
) -> None:
    standing, limit = Standing("p"), Limit(0)
    woken: list[Request] = []
    waiting: list[Request] = []
    holding: dict[Request, int] = {}  # And how many of its groups count as begun already.
    begun = 0

    def fits(request: Request) -> bool:
        held = sum(one.groups - counted for one, counted in holding.items())
        return limit.groups is None or begun + held + request.groups <= limit.groups

    def admit(request: Request) -> None:
        nonlocal begun
        holding[request] = request.groups if request.group else 0
        begun += holding[request]

    for what, number, more in steps:
        woken.clear()
        expected: list[Request] = []
        if what == "ask":
            assert number is not None
            request = Request(1 if more else number, "g" if more else "", lambda: None, 0.0)
            request.wake = partial(woken.append, request)
            standing.ask(request, limit, 0.0)
            if waiting or not fits(request):
                waiting.append(request)
            else:
                admit(request)
        elif what == "limit":
            limit = Limit(number)
        elif holding or waiting:
            assert number is not None
            request = [*holding, *waiting][number % (len(holding) + len(waiting))]
            standing.end(request, more)
            if request in waiting:
                waiting.remove(request)
                expected.append(request)
            else:
                begun += min(more, request.groups) - holding.pop(request)
        standing.serve(limit, 0.0)
        while waiting and fits(waiting[0]):
            admit(waiting[0])
            expected.append(waiting.pop(0))
        assert woken == expected
        assert list(standing.waiting) == waiting
        assert standing.says() == ("p", begun, sum(one.groups for one in waiting))
        assert [one.waits for one in holding] == [False] * len(holding)


def admitted(request: Request) -> bool:
    return not request.waits


def test_requests_that_fit_pass_one_that_does_not_in_every_other_turn() -> None:
    standing, limit = Standing("p"), Limit(8)
    large = asked(standing, 8, groups=1_000, now_s=100.0)
    passed = []
    for tenths in range(40 * 10):
        now_s = 100.0 + tenths / 10
        small = asked(standing, 8, now_s=now_s)
        passed.append(admitted(small))
        standing.end(small, 0)
        standing.serve(limit, now_s)
    turns = [(of, len([*many]) / 10) for of, many in groupby(passed)]
    assert turns == [
        (False, 1.0),
        (True, 1.0),
        (False, 2.0),
        (True, 4.0),
        (False, 8.0),
        (True, 16.0),
        (False, 8.0),
    ]
    assert not admitted(large)


def test_those_that_wait_behind_one_that_does_not_fit_go_in_their_order() -> None:
    standing, limit = Standing("p"), Limit(3)
    large, *small = [asked(standing, 3, groups, now_s=100.0) for groups in (4, 2, 2, 1, 1)]
    standing.serve(limit, 100.9)
    assert not any(map(admitted, small))
    standing.serve(limit, 101.0)
    assert [*map(admitted, small)] == [True, False, True, False]
    standing.serve(Limit(7), 101.5)  # Whoever came first is first in each turn.
    assert admitted(large)
    assert not admitted(small[1])


@given(st.integers(1, 20), st.floats(0.1, 30.0))
def test_a_large_request_is_admitted_within_five_times_as_long_as_its_room_takes(
    groups: int, takes_s: float
) -> None:
    """Small ones hold all the room, and others of them always wait for it."""
    standing, limit, ends_s = Standing("p"), Limit(groups), dict[Request, float]()
    ends_s |= {asked(standing, groups, group="", now_s=0.0): takes_s for _ in range(groups)}
    large = asked(standing, groups, groups, now_s=0.0)
    waiting = [asked(standing, groups, group="", now_s=0.0) for _ in range(3 * groups)]
    now_s, step_s = 0.0, takes_s / 16
    while not admitted(large):
        now_s += step_s
        for one in [one for one, end_s in ends_s.items() if end_s <= now_s]:
            del ends_s[one]
            standing.end(one, 0)  # The sampler lets it begin another one.
            waiting.append(asked(standing, groups, group="", now_s=now_s))
        standing.serve(limit, now_s)
        begun = [*filter(admitted, waiting)]
        waiting = [one for one in waiting if one.waits]
        ends_s |= dict.fromkeys(begun, now_s + takes_s)
        # Whoever ends is noticed a step later.
        assert now_s <= 5 * max(takes_s + step_s, 1.0) + step_s


def test_it_tells_that_it_lives_only_while_something_is_open_or_waits() -> None:
    standing = Standing("p")
    assert standing.tells(1_000.0) == (False, float("inf"))
    one = asked(standing, 1)  # Tells so itself.
    assert standing.tells(1.0) == (False, ALIVE_S - 1.0)
    assert standing.tells(ALIVE_S) == (True, ALIVE_S)
    assert standing.tells(ALIVE_S) == (False, ALIVE_S)
    two = asked(standing, 1)
    assert standing.tells(ALIVE_S)[0]
    standing.end(one, 1)
    assert standing.tells(2 * ALIVE_S) == (True, TELL_AGAIN_S)
    standing.end(two, 0)
    # That nothing waits any more, once.
    assert standing.tells(2 * ALIVE_S) == (False, TELL_AGAIN_S)
    assert standing.tells(2 * ALIVE_S + TELL_AGAIN_S) == (True, float("inf"))
    assert standing.tells(9 * ALIVE_S) == (False, float("inf"))


def test_the_first_that_waits_is_told_at_once_and_more_within_a_second() -> None:
    standing = Standing("p")
    asked(standing, 0)
    assert standing.tells(100.0)[0]
    assert standing.tells(101.0) == (False, TELL_AGAIN_S)
    for _ in range(1_000):
        asked(standing, 0)
        assert not standing.tells(100.9)[0]
    assert standing.tells(100.9) == (False, TELL_AGAIN_S)
    assert standing.tells(101.0) == (True, TELL_AGAIN_S)
    assert standing.tells(101.0 + ALIVE_S - 0.5) == (False, 0.5)
