"""Which prompts are open at one writer of steps."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.producers import OUTBOX
from rollstream.producers import Contradiction, Step
from rollstream.producers.rollouts.validate import GroupAddress
from rollstream.producers.steps import submitted as module
from rollstream.producers.steps.submitted import OPEN_PROMPT_S, Submitted
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.ids import step_rollout_uid
from rollstream.streams.errors import BufferFull


def step(
    trajectory: str, index: int, prompt: str, *, last: bool = False, n: int | None = None
) -> Step:
    return Step([], [], None, trajectory, prompt, index, "v", 0, is_last=last, n_rollouts=n)


def submit(prompts: Submitted, now_s: float, *steps: Step) -> None:
    draft = prompts.draft(now_s)
    for one in steps:
        draft.size_of(one)
        draft.take(one, step_rollout_uid(one.prompt_uid, one.trajectory_uid), 0)
    prompts.add(draft)


def end(prompts: Submitted, trajectory: str, prompt: str, now_s: float = 1.0) -> None:
    ended = OUTBOX.ended(GroupAddress("web", prompt, prompt, 0, "train"), trajectory, 0)
    prompts.end(ended, 0, now_s)


def is_known(prompts: Submitted, trajectory: str) -> bool:
    try:
        return prompts.prompt_of(trajectory) != ""
    except InvalidRollout:
        return False


@pytest.mark.proves("B4")
def test_a_prompt_whose_rest_went_elsewhere_leaves_by_its_age() -> None:
    prompts = Submitted(1)
    submit(prompts, 0.0, step("a", 0, "p", n=8))
    with pytest.raises(BufferFull):
        submit(prompts, OPEN_PROMPT_S - 1, step("b", 0, "q"))
    submit(prompts, OPEN_PROMPT_S - 1, step("a", 1, "p"))
    with pytest.raises(BufferFull):
        submit(prompts, OPEN_PROMPT_S, step("b", 0, "q"))
    submit(prompts, 2 * OPEN_PROMPT_S - 1, step("b", 0, "q"))
    assert len(prompts) == 1
    assert not is_known(prompts, "a")


def test_a_prompt_of_unknown_size_is_over_with_its_trajectories() -> None:
    prompts = Submitted(9)
    submit(prompts, 0.0, step("a", 0, "p"), step("b", 0, "p", last=True))
    assert len(prompts) == 1
    end(prompts, "a", "p")
    end(prompts, "a", "p")
    assert len(prompts) == 0


def test_a_retried_last_step_counts_once() -> None:
    prompts = Submitted(9)
    for _ in range(2):
        submit(prompts, 0.0, step("a", 0, "p", last=True, n=2))
    assert len(prompts) == 1
    submit(prompts, 0.0, step("b", 0, "p", last=True))
    assert len(prompts) == 0


def test_an_end_that_names_its_prompt_counts_once_whoever_took_the_steps() -> None:
    prompts = Submitted(9)
    submit(prompts, 0.0, step("a", 0, "p", n=2))
    for _ in range(2):
        end(prompts, "b", "p")
    assert len(prompts) == 1
    end(prompts, "a", "p")
    assert len(prompts) == 0


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([step(f"{n}", 1, f"p{n}") for n in range(9)], id="of prompts begun elsewhere"),
        pytest.param([step(f"{n}", 0, "p") for n in range(9)], id="open ones of one prompt"),
        pytest.param(
            [step(f"{n}", 0, "p", last=True, n=99) for n in range(9)], id="ended ones of one prompt"
        ),
    ],
)
def test_trajectories_are_bounded_and_the_oldest_are_forgotten(
    steps: list[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KNOWN_MAX", 4)
    prompts = Submitted(9)
    submit(prompts, 0.0, *steps)
    known = [one.trajectory_uid for one in steps if is_known(prompts, one.trajectory_uid)]
    assert known == ["5", "6", "7", "8"]


def test_what_was_forgotten_still_ends_where_its_prompt_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "KNOWN_MAX", 2)
    prompts = Submitted(9)
    submit(prompts, 0.0, *(step(f"{n}", 0, "p", n=8) for n in range(8)))
    assert not is_known(prompts, "0")
    for n in range(8):
        assert len(prompts) == 1
        end(prompts, f"{n}", "p")
    assert len(prompts) == 0


def test_a_uid_in_two_prompts_is_two_trajectories_until_one_is_forgotten() -> None:
    prompts = Submitted(9)
    submit(prompts, 0.0, step("a", 0, "p"))
    submit(prompts, 1.0, step("a", 0, "q"))
    assert len(prompts) == 2
    with pytest.raises(InvalidRollout, match="trajectories of prompts 'p', 'q' have the uid a"):
        prompts.prompt_of("a")
    submit(prompts, OPEN_PROMPT_S)
    assert prompts.prompt_of("a") == "q"
    end(prompts, "a", "q")
    assert len(prompts) == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 1.0, OPEN_PROMPT_S / 2, OPEN_PROMPT_S]),
            st.sampled_from("pqrs"),
            st.sampled_from("abc"),
            st.integers(0, 2),
            st.booleans(),
        ),
        max_size=40,
    ),
    st.integers(1, 3),
)
def test_nobody_is_refused_for_longer_than_a_prompt_counts(
    submitted: list[tuple[float, str, str, int, bool]], bound: int
) -> None:
    prompts, now_s = Submitted(bound), 0.0
    for wait_s, prompt, trajectory, index, last in submitted:
        now_s += wait_s
        one = step(f"{prompt}{trajectory}", index, prompt, last=last, n=3)
        try:
            submit(prompts, now_s, one)
        except Contradiction:
            continue
        except BufferFull:
            assert len(prompts) == bound
            assert index == 0
        assert len(prompts) <= bound
    submit(prompts, now_s + OPEN_PROMPT_S, step("new", 0, "new"))
    assert len(prompts) == 1


NAME_CHARS = 1_000


def test_the_memory_of_prompts_and_trajectories_is_as_documented() -> None:
    """200 bytes a step, 500 a trajectory, 500 a prompt, and the name of each prompt once."""
    prompts, each = Submitted(4_096), 4
    names = "x" * NAME_CHARS
    tracemalloc.start()
    try:
        for number in range(2_048):
            for member in range(each):
                # Texts of their own, as requests have them.
                submit(prompts, 0.0, step(f"{names}{number}-{member}", 0, f"{names}{number}", n=8))
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(prompts) == 2_048
    assert size < 2_048 * (each * (200 + 500) + 500 + NAME_CHARS)


def test_a_prompt_that_begins_again_counts_its_trajectories_anew() -> None:
    prompts = Submitted(9)
    for _ in range(2):
        submit(prompts, 0.0, step("a", 0, "p", last=True, n=2))
        assert len(prompts) == 1
        submit(prompts, 0.0, step("b", 0, "p", last=True, n=2))
        assert len(prompts) == 0
