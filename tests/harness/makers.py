"""What every batch maker must do, as checks for tests: copy this file to test your own.

@given(steps=steps_of_rollouts(), batch_size=st.integers(0, 12))
def test_my_maker(steps: list[list[Rollout]], batch_size: int) -> None:
    check_maker(MyMaker, steps, batch_size)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from hypothesis import strategies as st

from rollstream.sampler import BatchMaker, MadeBatch, Rollout

ENVIRONMENTS = ("math", "code")
FIRST_STEP = 3


def made_by(
    maker: BatchMaker, rollouts: Iterable[Rollout], batch_size: int, step: int = FIRST_STEP
) -> MadeBatch:
    """What the maker makes of these at that step."""
    maker.begin(step)
    for rollout in rollouts:
        maker.add_rollout(rollout)
    return maker.create_batch(batch_size)


@st.composite
def steps_of_rollouts(
    draw: st.DrawFn, steps: int = 3, lowest_step: int = -1
) -> list[list[Rollout]]:
    """Of each step the new rollouts, whole groups; some problems are there again and again."""
    return [draw(_new_rollouts(lowest_step)) for _ in range(draw(st.integers(1, steps)))]


@st.composite
def _new_rollouts(draw: st.DrawFn, lowest_step: int) -> list[Rollout]:
    rollouts: list[Rollout] = []
    for group in range(draw(st.integers(0, 6))):
        problem = draw(st.sampled_from(ENVIRONMENTS)), draw(st.sampled_from(["a", "b", "c", "d"]))
        step, epoch = draw(st.integers(lowest_step, 3)), draw(st.integers(0, 1))
        rewards = st.integers(-16, 16).map(lambda eighths: eighths / 8) | st.sampled_from(
            [0.0, 1.0]
        )
        for reward in draw(st.lists(rewards, min_size=1, max_size=5)):
            own = step - draw(st.integers(0, min(step - lowest_step, 1)))
            index = len(rollouts)
            before = draw(st.integers(0, epoch))
            rollout = Rollout(index, group, *problem, own, f"step-{own}", reward, 10 + index)
            rollouts.append(rollout._replace(policy_epoch=epoch - before))
    return rollouts


def with_carried(
    new: Sequence[Rollout], before: Sequence[Rollout], made: MadeBatch
) -> tuple[list[Rollout], dict[int, int]]:
    """The rollouts of the next step: new ones, then whole groups of those that were kept; and of
    each trajectory that is here again what it was before."""
    kept = set(made.kept.tolist())
    groups = {rollout.group for rollout in before if rollout.trajectory in kept}
    rollouts, again = list(new), dict[int, int]()
    numbers = {group: len({r.group for r in new}) + n for n, group in enumerate(sorted(groups))}
    for rollout in before:
        if rollout.group in groups:
            again[len(rollouts)] = rollout.trajectory
            rollouts.append(
                rollout._replace(
                    trajectory=len(rollouts),
                    group=numbers[rollout.group],
                    used=rollout.trajectory not in kept,
                    carried=True,
                )
            )
    return rollouts, again


def check_maker(
    new_maker: Callable[[], BatchMaker], steps: Sequence[Sequence[Rollout]], batch_size: int
) -> None:
    """Lets the maker go through these steps, carrying from each to the next what it keeps.

    Each step must be the same again, also by another maker; each trajectory that was added is
    trained on at one step, or filtered, or kept to the end; none is trained on twice.
    """
    maker = new_maker()
    text = json.dumps(maker.settings, sort_keys=True)
    rollouts, names = list(steps[0]), {r.trajectory: (0, r.trajectory) for r in steps[0]}
    trained: set[tuple[int, int]] = set()
    filtered = 0
    for step, following in enumerate((*steps[1:], []), start=1):
        made = made_by(maker, rollouts, batch_size, FIRST_STEP + step)
        check_made(maker, rollouts, made, batch_size)
        others = new_maker()
        made_by(others, rollouts[::2], batch_size, FIRST_STEP)
        for again in (
            maker.create_batch(batch_size),
            made_by(others, rollouts, batch_size, FIRST_STEP + step),
        ):
            assert as_values(again) == as_values(made), "the same rollouts gave another batch"
        filtered += sum(made.filtered.values())
        now = {names[trajectory] for trajectory in made.trajectories.tolist()}
        assert not now & trained, "a trajectory is trained on twice"
        trained |= now
        kept = {names[trajectory] for trajectory in made.kept.tolist()}
        rollouts, carried = with_carried(following, rollouts, made)
        names = {
            **{r.trajectory: (step, r.trajectory) for r in following},
            **{after: names[before] for after, before in carried.items()},
        }
    assert len(trained) + len(kept) + filtered == sum(map(len, steps)), "one is lost"
    assert json.dumps(maker.settings, sort_keys=True) == text, "settings change"


def check_made(
    maker: BatchMaker, rollouts: Sequence[Rollout], made: MadeBatch, batch_size: int
) -> None:
    """What holds of any batch that was made of these rollouts."""
    trained, kept = made.trajectories.tolist(), made.kept.tolist()
    assert len(trained) <= batch_size
    assert len(made.advantages) == len(trained)
    assert np.isfinite(made.advantages).all()
    dtypes = [made.trajectories.dtype, made.advantages.dtype, made.kept.dtype]
    assert [*dtypes, made.filtered_groups.dtype] == [np.int32, np.float32, np.int32, np.int32]
    unused = {rollout.trajectory for rollout in rollouts if not rollout.used}
    assert len({*trained, *kept}) == len(trained) + len(kept), "one is there twice"
    assert {*trained, *kept} <= unused, "an earlier step trained on it"
    assert all(count > 0 for count in made.filtered.values())
    assert len(trained) + len(kept) + sum(made.filtered.values()) == len(unused), "one is lost"
    stay = {rollout.group for rollout in rollouts if rollout.trajectory in {*trained, *kept}}
    filtered = {rollout.group for rollout in rollouts} - stay
    assert sorted(made.filtered_groups.tolist()) == sorted(filtered)
    metadata = maker.get_batch_metadata(made)
    assert all(type(value) is float for value in metadata.values())


def as_values(made: MadeBatch) -> tuple[object, ...]:
    """What two batches that are the same have in common."""
    arrays = made.trajectories, made.advantages, made.kept, made.filtered_groups
    return *(array.tobytes() for array in arrays), dict(made.filtered)
