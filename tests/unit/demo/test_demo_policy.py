"""The demo's policy: what it samples, and how its weights travel."""

from __future__ import annotations

import numpy as np
import pytest

from examples.demo.errors import PromptDoesNotFit, WeightsDoNotFit
from examples.demo.policy import MAX_ANSWER_TOKENS, MAX_PROMPT_TOKENS, Policy
from examples.demo.tokens import END, decode, encode
from unit.demo.ragged import PROMPTS


def test_weights_that_travelled_as_bytes_sample_the_same_answers() -> None:
    policy = Policy.initial(4)
    arrived = Policy.from_bytes(policy.to_bytes())
    np.testing.assert_array_equal(arrived.weights, policy.weights)
    answers = [
        [
            completion.text
            for group in it.sample(PROMPTS, 8, np.random.default_rng(1))
            for completion in group
        ]
        for it in (policy, arrived)
    ]
    assert answers[0] == answers[1]
    assert len(set(answers[0])) > 8


def test_arrived_weights_are_a_copy_that_a_learner_may_change() -> None:
    policy = Policy.initial(4)
    arrived = Policy.from_bytes(policy.to_bytes())
    arrived.params["readout_bias"] += 1
    assert not np.array_equal(arrived.weights, policy.weights)


def test_seed_decides_the_first_weights() -> None:
    np.testing.assert_array_equal(Policy.initial(4).weights, Policy.initial(4).weights)
    assert not np.array_equal(Policy.initial(4).weights, Policy.initial(5).weights)


def test_bytes_of_another_policy_are_refused() -> None:
    with pytest.raises(WeightsDoNotFit, match="one release"):
        Policy.from_bytes(Policy.initial(4).to_bytes()[:-4])


def test_sample_gives_whole_groups_in_the_order_of_the_prompts() -> None:
    groups = Policy.initial(4).sample(PROMPTS, 5, np.random.default_rng(1))
    assert [len(group) for group in groups] == [5] * len(PROMPTS)
    for completion in (completion for group in groups for completion in group):
        assert completion.ids.dtype == np.int32
        assert completion.logprobs.dtype == np.float32
        assert completion.ids.size == completion.logprobs.size
        assert END not in completion.ids[:-1]
        assert completion.text == decode(completion.ids)
        if completion.stop_reason == "stop":
            assert completion.ids[-1] == END
        else:
            assert completion.ids[-1] != END
            assert completion.ids.size == MAX_ANSWER_TOKENS


def test_answers_are_drawn_as_often_as_their_log_probs_say() -> None:
    policy = Policy.initial(4)
    policy.params["readout_bias"][[END, 1, 2]] += 3
    [group] = policy.sample(PROMPTS[:1], 20_000, np.random.default_rng(1))
    firsts = np.array([completion.ids[0] for completion in group])
    for token in (END, 1, 2):
        drawn = firsts == token
        recorded = next(c.logprobs[0] for c in group if c.ids[0] == token)
        assert drawn.mean() == pytest.approx(np.exp(recorded), abs=0.015)


def test_prompts_of_different_length_do_not_disturb_one_another() -> None:
    policy = Policy.initial(4)
    alone = {}
    for seed_row, prompt in enumerate(PROMPTS):
        [[completion]] = policy.sample([prompt], 1, np.random.default_rng(seed_row))
        alone[seed_row] = completion
    together = policy.sample(PROMPTS, 400, np.random.default_rng(9))
    for row, expected in alone.items():
        same = [c for c in together[row] if c.ids[0] == expected.ids[0]]
        np.testing.assert_allclose(same[0].logprobs[0], expected.logprobs[0], atol=1e-5)


def test_prompt_that_is_too_long_is_refused() -> None:
    prompt = encode("bits " + "1" * MAX_PROMPT_TOKENS)
    with pytest.raises(PromptDoesNotFit, match=str(MAX_PROMPT_TOKENS + 1)):
        Policy.initial(4).sample([prompt], 1, np.random.default_rng(1))


def test_token_that_is_not_in_the_vocabulary_is_refused() -> None:
    with pytest.raises(PromptDoesNotFit, match="vocabulary"):
        Policy.initial(4).sample([np.array([99], np.int32)], 1, np.random.default_rng(1))


def test_no_prompts_give_no_answers() -> None:
    assert Policy.initial(4).sample([], 8, np.random.default_rng(1)) == []
