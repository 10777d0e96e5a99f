"""The multi-turn example's agent: what it sees of the lake."""

from __future__ import annotations

from itertools import pairwise

from examples.multi_turn.lake import FIRST_ACTION, MAX_TURNS, Walk

LEFT, DOWN, RIGHT, UP = range(FIRST_ACTION, FIRST_ACTION + 4)


def test_the_goal_earns_one_and_each_context_extends_the_one_before() -> None:
    walk = Walk()
    for _ in range(2):  # A walk may be begun again.
        walk.reset()
        rewards, contexts, ended = [], [list(walk.context)], []
        actions = [DOWN, DOWN, RIGHT, RIGHT, DOWN, RIGHT]
        for action in actions:
            rewards.append(walk.act(action))
            contexts.append(list(walk.context))
            ended.append(walk.ended)
        assert rewards == [0, 0, 0, 0, 0, 1]
        assert ended == [False] * 5 + [True]
        assert contexts[-1][0::2] == [0, 4, 8, 9, 10, 14, 15]
        assert contexts[-1][1::2] == actions
        assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(contexts))


def test_who_walks_in_circles_is_stopped_and_a_hole_earns_nothing() -> None:
    walk = Walk()
    turns = 0
    while not walk.ended:
        assert walk.act(UP) == 0
        turns += 1
    assert turns == MAX_TURNS
    walk.reset()
    assert [walk.act(DOWN), walk.act(RIGHT)] == [0, 0]
    assert walk.ended
