"""Readers that are lent to one thread at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import cast

import pytest

from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import Record
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.memory.reader import MemoryReader
from rollstream.streams.owned.lending import SERVE_S, Lender


class Client(MemoryReader):
    """Takes down what is done with it."""

    def __init__(self, on_poll: Callable[[], None] = lambda: None) -> None:
        self.polled = 0
        self.is_open = True
        self._on_poll = on_poll

    def poll(self, records_max: int, timeout_s: float) -> list[Record]:
        assert self.is_open
        self.polled += 1
        self._on_poll()
        return []

    def close(self) -> None:
        assert self.is_open, "twice"
        self.is_open = False


class Clients(Lender):
    """Lends these."""

    def lend(  # type: ignore[override]
        self, why_not: str, deadline: Deadline
    ) -> AbstractContextManager[Client]:
        return cast(AbstractContextManager[Client], super().lend(why_not, deadline))


def lender(count: int = 2) -> Clients:
    return Clients(Client, count)


def in_time() -> Deadline:
    return Deadline(0.0)


def test_the_client_that_came_back_last_is_lent_again() -> None:
    clients = lender(3)
    with clients.lend("none", in_time()) as first, clients.lend("none", in_time()) as second:
        assert first is not second
    for _ in range(2):
        with clients.lend("none", in_time()) as again:
            assert again is first
        clients.serve(SERVE_S)


def test_where_all_are_lent_the_next_one_is_refused_at_the_deadline() -> None:
    clients = lender(1)
    refused = pytest.raises(BrokerUnavailable, match="t: all are lent within")
    with clients.lend("none", in_time()), refused, clients.lend("t: all are lent", in_time()):
        pass
    with clients.lend("none", in_time()):
        pass


def test_those_that_are_not_lent_are_polled_once_a_second() -> None:
    clients = lender()
    with clients.lend("none", in_time()) as lent:
        with clients.lend("none", in_time()) as idle:
            pass
        for at in range(4):
            clients.serve(at * SERVE_S / 2)
        assert (lent.polled, idle.polled) == (0, 2)


def test_one_that_an_error_was_raised_with_is_closed_and_lent_no_more() -> None:
    clients = lender(1)
    with pytest.raises(ZeroDivisionError), clients.lend("none", in_time()) as failed:
        raise ZeroDivisionError
    assert not failed.is_open
    with clients.lend("none", in_time()) as after:
        assert after is not failed


def test_all_are_closed_those_that_are_lent_when_they_come_back() -> None:
    clients = lender()
    with clients.lend("none", in_time()) as lent:
        with clients.lend("none", in_time()) as idle:
            pass
        clients.close()
        assert (lent.is_open, idle.is_open) == (True, False)
    assert not lent.is_open
    clients.close()
    with clients.lend("none", in_time()) as after:
        assert after.is_open


def test_one_that_is_polled_while_all_are_closed_is_closed_too() -> None:
    clients = Clients(lambda: Client(on_poll=clients.close), 2)
    with clients.lend("none", in_time()) as idle:
        pass
    clients.serve(SERVE_S)
    assert not idle.is_open


def test_one_that_cannot_be_made_is_made_later() -> None:
    def make() -> Client:
        if failing:
            raise BrokerUnavailable("away")
        return Client()

    failing = [True]
    clients = Clients(make, 1)
    with pytest.raises(BrokerUnavailable, match="away"), clients.lend("none", in_time()):
        pass
    failing.clear()
    with clients.lend("none", in_time()):
        pass
