"""What the environments of a gateway leave each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.gateway.limits import Limit, Limits
from rollstream.gateway.problems import Refused
from rollstream.runtime.config.gateway import GatewayConfig


def requests_of(environments: int, **given: int) -> Limit:
    return Limits.of(GatewayConfig(**{"max_requests": 100, **given}), environments).requests  # type: ignore[arg-type]


def takes(limit: Limit, environment: str) -> Iterator[None]:
    """One after the other, until it is refused."""
    while True:
        try:
            limit.take(environment)
        except Refused:
            return
        yield


def test_an_environment_takes_its_share_and_of_many_at_most_a_quarter() -> None:
    counts = (1, 2, 4, 5, 10, 90, 100, 400)
    most = {number: sum(1 for _ in takes(requests_of(number), "a")) for number in counts}
    assert most == {1: 100, 2: 50} | dict.fromkeys(counts[2:], 25)


def test_of_many_environments_one_may_have_a_quarter_of_the_bytes_if_others_have_none() -> None:
    bodies = {"max_body_bytes": 4_000, "max_pending_bytes": 256_000}
    for environments in (10, 60, 100):
        limit = Limits.of(GatewayConfig(**bodies), environments).pending_bytes  # type: ignore[arg-type]
        for _ in range(16):
            limit.take("a", 4_000)
        with pytest.raises(Refused):
            limit.take("a", 4_000)


@pytest.mark.parametrize("environments", [2, 3, 4, 5, 10, 50])
def test_whatever_others_take_each_environment_has_a_part_of_half_of_all(environments: int) -> None:
    limit = requests_of(environments)
    names = [f"e{number}" for number in range(environments)]
    taken = [sum(1 for _ in takes(limit, name)) for name in names]
    assert min(taken) == taken[-1] >= 100 // (2 * environments)
    assert limit.in_all <= 100


def test_an_environment_that_has_its_part_is_told_what_the_others_took() -> None:
    limit = requests_of(10)
    assert [sum(1 for _ in takes(limit, name)) for name in "abcd"] == [25, 25, 15, 5]
    with pytest.raises(
        Refused, match=r"50 requests at once beyond 5 of each .*max_requests is 100"
    ):
        limit.take("d")


def test_a_limit_that_is_set_keeps_nothing_for_others() -> None:
    limit = requests_of(10, max_requests_per_environment=60)
    assert [sum(1 for _ in takes(limit, name)) for name in "ab"] == [60, 40]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans())))
def test_what_is_given_back_is_there_for_all(steps: list[tuple[str, bool]]) -> None:
    limit, held = requests_of(6), dict.fromkeys("abcdef", 0)
    for name, gives in steps:
        if gives and held[name]:
            limit.give(name)
            held[name] -= 1
        else:
            limit.take(name)
            held[name] += 1
    for name, count in held.items():
        limit.give(name, count)
    assert sum(1 for _ in takes(limit, "a")) == 25
