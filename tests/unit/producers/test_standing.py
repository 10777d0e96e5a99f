"""Who is admitted, in which order, and what is given back, against a model."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from rollstream.producers.admission.shares import Limit
from rollstream.producers.admission.standing import ALIVE_S, TELL_AGAIN_S, Request, Standing


def asked(standing: Standing, limit: int | None, groups: int = 1, group: str = "g") -> Request:
    request = Request(groups, group, lambda: None, 0.0)
    standing.ask(request, Limit(limit), 0.0)
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


def test_it_tells_that_it_lives_only_while_something_is_open_or_waits() -> None:
    standing = Standing("p")
    assert standing.tells_that_it_lives(1_000.0) == (False, float("inf"))
    one = asked(standing, 1)  # Tells so itself.
    assert standing.tells_that_it_lives(1.0) == (False, ALIVE_S - 1.0)
    assert standing.tells_that_it_lives(ALIVE_S) == (True, ALIVE_S)
    assert standing.tells_that_it_lives(ALIVE_S) == (False, ALIVE_S)
    two = asked(standing, 1)
    assert standing.tells_of_wait(ALIVE_S)
    standing.end(one, 1)
    assert standing.tells_that_it_lives(2 * ALIVE_S) == (True, TELL_AGAIN_S)
    standing.end(two, 0)
    # That nothing waits any more, once.
    assert standing.tells_that_it_lives(2 * ALIVE_S) == (False, TELL_AGAIN_S)
    assert standing.tells_that_it_lives(2 * ALIVE_S + TELL_AGAIN_S) == (True, float("inf"))
    assert standing.tells_that_it_lives(9 * ALIVE_S) == (False, float("inf"))


def test_the_first_that_waits_is_told_at_once_and_more_within_a_second() -> None:
    standing = Standing("p")
    asked(standing, 0)
    assert standing.tells_of_wait(100.0)
    assert standing.tells_that_it_lives(101.0) == (False, TELL_AGAIN_S)
    for _ in range(1_000):
        asked(standing, 0)
        assert not standing.tells_of_wait(100.9)
    assert standing.tells_that_it_lives(100.9) == (False, TELL_AGAIN_S)
    assert standing.tells_that_it_lives(101.0) == (True, TELL_AGAIN_S)
    assert standing.tells_that_it_lives(101.0 + ALIVE_S - 0.5) == (False, 0.5)
