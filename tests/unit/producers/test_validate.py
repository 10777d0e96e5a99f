"""What ``publish`` takes, and the error for anything else."""

from __future__ import annotations

import json
import math
from enum import Enum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.producers import ENVIRONMENT, sampled
from harness.taken import logged, publish, taken
from rollstream.producers import InvalidRollout, RolloutProducer, RolloutTooLarge
from rollstream.schemas.ingest.entry import NamedArray
from rollstream.schemas.order import Policy
from rollstream.schemas.rules import ATTACHED_BYTES_MAX
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.topics.layout import RECORD_BYTES_MAX

NAMED = Policy("a", 2, 5, "step-5")


@pytest.mark.proves("F22")
@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {},
            r"policy is not given, nor is weight_step; publish\(policy=producer\.policy\(\), .*=-1",
        ),
        ({"policy_version": "step-5"}, "policy is not given, nor is weight_step"),
        ({"policy": NAMED, "weight_step": 5}, "policy and weight_step are given; .*leave out the"),
        (
            {"policy": NAMED, "policy_version": "v", "lineage": "a"},
            "policy and policy_version and lineage are given",
        ),
        ({"policy": None}, "policy is None; give what producer.policy"),
        ({"policy": "step-5"}, "policy is 'step-5'; give what producer.policy"),
        ({"policy": NAMED._replace(step=-2)}, "weight_step is -2; steps count from 0"),
        ({"policy": NAMED._replace(version="")}, "policy_version is ''"),
    ],
)
def test_what_sampled_is_said_once_and_whole(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRollout, match=told):
        taken({"output_tokens": [1], **given})


def test_weights_that_are_not_known_are_written_out() -> None:
    assert publish(weight_step=-1)["weight_step"] == -1


MASKED: Any = np.ma.masked_equal([1, 2, 3], 2)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"logprobs": [0.0]}, "logprobs has 1 values for 3 output tokens; give one for each"),
        ({"loss_mask": [True]}, "loss_mask has 1 values for 3 output tokens"),
        ({"ref_logprobs": [0.0] * 4}, "ref_logprobs has 4 values for 3 output tokens"),
        ({"token_rewards": []}, "token_rewards has 0 values"),
        ({"old_logprobs": [0.0]}, "old_logprobs has 1 values"),
        ({"weight_step": [1]}, "weight_step has 1 values"),
        (
            {"token_arrays": {"experts": np.zeros((0, 2**18))}},
            "values may have 1048576 bytes",
        ),
        ({"token_arrays": {"experts": np.zeros((2, 8))}}, r"experts'\] has shape \(2, 8\)"),
        ({"token_arrays": {"experts": ["a", "b", "c"]}}, "dtype <U1, which is no plain number"),
        ({"token_arrays": {"": np.zeros(3)}}, "token_arrays has a name that is ''"),
        ({"token_arrays": {"n" * 201: np.zeros(3)}}, "has 201 characters; give 1 to 200"),
        (
            {"token_arrays": {f"n{i}": np.zeros(3) for i in range(65)}},
            "token_arrays has 65 names; give at most 64",
        ),
        (
            {"weight_step": np.array([1, 2**63, 1], "u8")},
            r"weight_step\[1\] is 9223372036854775808; steps must fit int64",
        ),
        ({"token_arrays": 3}, "token_arrays is 3; give a mapping"),
        ({"policy_version": "v" * 201}, "'v+' of 201 characters and must name a folder"),
        ({"rollout_uid": "u" * 4097}, "rollout_uid has 4097 characters; give at most 4096"),
        ({"rollout_uid": "r\n1"}, r"rollout_uid is 'r\\n1' with control character '\\n'; give one"),
        ({"group_uid": "\x7f"}, r"group_uid is '\\x7f' with control character"),
        ({"rollout_uid": "é\x85"}, r"rollout_uid is 'é\\x85' with control character"),
        ({"stop_reason": "s" * 4097}, "stop_reason has 4097 characters"),
        ({"old_policy_version": "v" * 4097}, "old_policy_version has 4097 characters"),
        ({"reward": math.nan}, "reward is nan; give a finite number"),
        ({"reward": -math.inf}, "reward is -inf"),
        ({"reward": 1e308}, r"reward is 1e\+308; float32, .* from -3.4028235e\+38 to 3.40"),
        ({"reward": -3.5e38}, r"reward is -3.5e\+38; float32"),
        ({"rewards": {"format": 1e39}}, r"rewards\['format'\] is 1e\+39; float32"),
        ({"reward": "1.0"}, "reward is '1.0'; give one number"),
        ({"reward": [1.0, 2.0]}, r"reward is \[1.0, 2.0\]"),
        ({"rewards": {"format": math.nan}}, r"rewards\['format'\] is nan"),
        ({"rewards": {"": 1.0}}, "rewards has a name that is ''"),
        ({"rewards": [1.0]}, r"rewards is \[1.0\]; give a mapping"),
        ({"logprobs": [0.0, math.nan, 0.0]}, r"logprobs\[1\] is nan; every value must be finite"),
        ({"logprobs": [0.0, 0.0, -math.inf]}, r"logprobs\[2\] is -inf"),
        ({"logprobs": [math.nan] * 3}, r"logprobs\[0\] is nan \(and 2 more\)"),
        ({"logprobs": [0.0, 1e300, 0.0]}, r"logprobs\[1\] is 1e\+300; every value .* float32"),
        ({"logprobs": [0.0, 0.5, 0.0]}, r"logprobs\[1\] is 0.5; .*at most 0 \(rounding: 0.001\)"),
        ({"old_logprobs": [0.0, 0.0, 0.0011]}, r"old_logprobs\[2\] is 0.00109"),
        ({"ref_logprobs": [70.0, 0.0, 0.0]}, r"ref_logprobs\[0\] is 70.0"),
        (
            {"logprobs": ["a", "b", "c"]},
            "logprobs has dtype <U1, first value .*'a'.*; give numbers",
        ),
        ({"logprobs": [[0.0], [0.0], [0.0]]}, r"logprobs has shape \(3, 1\)"),
        ({"logprobs": [[0.0], [0.0, 1.0]]}, "logprobs cannot be read as an array"),
        ({"ref_logprobs": [0.0, math.nan, 0.0]}, r"ref_logprobs\[1\] is nan"),
        ({"token_rewards": [0.0, math.inf, 0.0]}, r"token_rewards\[1\] is inf"),
        ({"old_logprobs": math.nan}, "old_logprobs is nan"),
        ({"output_tokens": [1, -1, 2]}, r"output_tokens\[1\] is -1; .*padding"),
        ({"prompt_tokens": np.array([1, -100], np.int32)}, r"prompt_tokens\[1\] is -100"),
        ({"output_tokens": [1, 2**31, 2]}, r"output_tokens\[1\] is 2147483648; .* int32"),
        ({"output_tokens": [1.0, 2.0, 3.0]}, "output_tokens has dtype float64.*give integers"),
        ({"prompt_tokens": "hello"}, "prompt_tokens is 'hello'; give a sequence"),
        ({"loss_mask": [0, 1, 2]}, r"loss_mask\[2\] is 2; give True and False"),
        ({"weight_step": -2}, "weight_step is -2; steps count from 0"),
        ({"weight_step": [1, -2, 3]}, r"weight_step\[1\] is -2"),
        ({"weight_step": "120"}, "weight_step is '120'; give a whole number"),
        ({"policy_version": ""}, "policy_version is ''; give a string that is not empty"),
        ({"policy_version": 120}, "policy_version is 120; give a string"),
        ({"policy_version": "mixed"}, "policy_version is 'mixed', the name of groups"),
        ({"continuation_of": "x"}, "continuation_of is 'x' in a segment with segment_idx 0, which"),
        (
            {"continuation_of": "x", "segment_idx": 0, "rollout_uid": "y"},
            "continuation_of is 'x' .*; give segment_idx=1 or more, or leave continuation_of out",
        ),
        (
            {"segment_idx": 3},
            "rollout_uid is not given, with segment_idx 3; give the uid that publish returned for",
        ),
        ({"prefix_hash": "zz", "segment_idx": 1}, "prefix_hash is 'zz'; give .* 32 hexadecimal"),
        ({"prefix_hash": "A" * 32, "segment_idx": 1}, "prefix_hash is 'A+'; give .* lower case"),
        ({"example_id": ""}, "example_id is ''"),
        ({"environment": ""}, "environment is ''"),
        ({"stop_reason": ""}, "stop_reason is ''"),
        ({"split": "test"}, "split is 'test'; give 'train' or 'eval'"),
        ({"group_size": -1}, "group_size is -1; give a number from 0"),
        ({"segment_idx": 2**31}, "segment_idx is 2147483648"),
        ({"segment_idx": 1.5}, "segment_idx is 1.5; give a whole number"),
        ({"is_last_segment": 1}, "is_last_segment is 1; give True or False"),
        ({"metadata": {"x": math.nan}}, r"metadata\['x'\] is nan, which JSON cannot hold"),
        ({"metadata": {"x": object()}}, r"metadata\['x'\] is <object .*give.*float"),
        (
            {"metadata": {"a": {"b": [1, np.zeros(2)]}}},
            r"metadata\['a'\]\['b'\]\[1\] is array\(\[0., 0.\]\), which JSON cannot hold; give",
        ),
        ({"metadata": {"a": {(1, 2): 3}}}, r"metadata\['a'\] is \{\(1, 2\): 3\}, which"),
        ({"messages": [{"role": {"user"}}]}, r"messages\[0\]\['role'\] is \{'user'\}, which"),
        ({"metadata": {"a": 1, "x": np.float32("nan")}}, r"metadata\['x'\] is .*nan"),
        ({"group_size": 10**6}, "group_size is 1000000; give a number from 0 to 65536"),
        ({"metadata": {1: "x"}}, "metadata has the key 1; JSON has strings as keys only"),
        ({"metadata": {"a": {1: 2, "1": 3}}}, r"metadata\['a'\] has the key 1; JSON has strings"),
        ({"metadata": {"a": [0, {None: 1}]}}, r"metadata\['a'\]\[1\] has the key None"),
        (
            {"metadata": {"a": ({}, {"b": {True: 1}})}},
            r"metadata\['a'\]\[1\]\['b'\] has the key Tr",
        ),
        ({"metadata": {"a": {}, "b": {1.5: 1}}}, r"metadata\['b'\] has the key 1.5"),
        ({"messages": [{"role": "user"}, {2: 1}]}, r"messages\[1\] has the key 2"),
        (
            {"metadata": {"a": np.array({1: 2, "1": 3})}},
            r"metadata\['a'\] is array\(\{1: 2, '1': 3\}, dtype=object\), which JSON cannot",
        ),
        ({"metadata": {"x": nested(100)}}, "metadata .* no JSON object: it nests 101 deep"),
        ({"reward": True}, "reward is True; give one number"),
        ({"rewards": {"format": np.bool_(False)}}, r"rewards\['format'\] is .*False.*; give one"),
        ({"messages": [{}, 1]}, r"messages\[1\] is 1; give a mapping"),
        ({"messages": [[]]}, r"messages\[0\] is \[\]; give a mapping"),
        ({"output_tokens": MASKED}, "output_tokens is a masked array; give x.filled"),
        ({"logprobs": -MASKED}, "logprobs is a masked array"),
        ({"loss_mask": MASKED > 1}, "loss_mask is a masked array"),
        ({"token_arrays": {"experts": MASKED}}, r"token_arrays\['experts'\] is a masked array"),
        ({"metadata": "{}"}, "metadata is '{}'; give a mapping"),
        ({"messages": "hello"}, "messages is 'hello'; give a list"),
        (
            {"messages": [{"content": b"x"}]},
            r"messages\[0\]\['content'\] is b'x', which",
        ),
        ({"attachments": {"image": "text"}}, r"attachments\['image'\] is a str; give bytes"),
        ({"attachments": {"": b""}}, "attachments has a name that is ''"),
        ({"example_id": "\ud800"}, "cannot be written as UTF-8"),
        ({"metadata": {"x": "\ud800"}}, "cannot be written as UTF-8"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_what_breaks_a_rule_is_told_with_value_and_remedy(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRollout, match=told):
        publish(**wrong)


def test_metadata_that_python_cannot_write_is_refused() -> None:
    for wrong in (nested(50_000), 10**5_000):
        with pytest.raises(InvalidRollout, match=r"metadata\['x'\] "):
            publish(metadata={"x": wrong})


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("\ud800")
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 1), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON | st.integers(95, 105).map(nested)))
def test_metadata_that_is_taken_is_taken_by_sealers_too(metadata: dict[str, Any]) -> None:
    try:
        text = publish(metadata=metadata)["metadata"]
    except InvalidRollout:
        return
    assert json.loads(text) == metadata


def test_metadata_may_be_texts_and_objects_of_numpy() -> None:
    given = {np.str_("a"): {np.str_("b"): 1}}
    assert json.loads(publish(metadata=given)["metadata"]) == given
    held = np.array(given)  # As np.load returns a dict.
    assert json.loads(publish(metadata={"x": held})["metadata"]) == {"x": given}


def test_an_unknown_argument_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'logprob'"):
        publish(logprob=[0.0])


@pytest.mark.parametrize("missing", ["example_id", "policy_version"])
def test_a_missing_argument_is_a_type_error(missing: str) -> None:
    given = {"example_id": "ex", **sampled()}
    del given[missing]
    with pytest.raises(TypeError, match=f"missing required keyword argument: '{missing}'"):
        logged(given)


@pytest.mark.parametrize("named", [{"group_uid": "\ud800"}, {"example_id": "\ud800"}])
def test_control_events_that_utf8_does_not_have_are_refused(named: dict[str, str]) -> None:
    broker = MemoryBroker()
    names: dict[str, Any] = {"example_id": "ex", "group_size": 2, **named}
    with (
        RolloutProducer(broker=broker, environment=ENVIRONMENT) as producer,
        pytest.raises(InvalidRollout, match="cannot be written as UTF-8"),
    ):
        producer.dispatch(**names)


def test_attachments_over_the_limit_are_told_with_both_sizes() -> None:
    publish(attachments={"image": bytes(ATTACHED_BYTES_MAX)})
    with pytest.raises(RolloutTooLarge, match="4194305 bytes, over the limit of 4194304") as told:
        publish(attachments={"one": bytes(ATTACHED_BYTES_MAX), "two": b"x"})
    assert (told.value.size, told.value.limit) == (ATTACHED_BYTES_MAX + 1, ATTACHED_BYTES_MAX)


def test_names_of_attachments_count_towards_the_size() -> None:
    with pytest.raises(RolloutTooLarge):
        publish(attachments={"n" * RECORD_BYTES_MAX: b"png"})


def test_names_of_rewards_are_repeated_in_files_and_bounded() -> None:
    with pytest.raises(InvalidRollout, match="rewards has a name that has 4097 characters"):
        publish(rewards={"n" * 4_097: 1.0})


@pytest.mark.parametrize(
    ("wrong", "field", "value"),
    [
        ({"rewards": {"": 1.0}}, "rewards", ""),
        ({"attachments": {3: b""}}, "attachments", 3),
        ({"token_arrays": {"n" * 201: np.zeros(3)}}, "token_arrays", "n" * 200),
        ({"loss_mask": [True]}, "loss_mask", 1),
    ],
)
def test_the_field_is_a_name_and_the_value_the_one_that_is_wrong(
    wrong: dict[str, Any], field: str, value: Any
) -> None:
    with pytest.raises(InvalidRollout) as told:
        publish(**wrong)
    assert (told.value.field, told.value.value) == (field, value)
    assert type(told.value.value) is type(value)


@given(st.lists(st.floats(width=32) | st.floats(0, 20_000, width=32), max_size=40))
def test_exactly_log_probs_that_a_model_may_give_are_taken(values: list[float]) -> None:
    given = -np.abs(np.array(values, np.float32))
    arguments = {"output_tokens": [1] * len(values), "logprobs": given}
    sound = given >= -1e4
    if sound.all():
        assert publish(**arguments)["logprobs"] == given.tobytes()
    else:
        first = int(np.flatnonzero(~sound if np.isfinite(given).all() else ~np.isfinite(given))[0])
        with pytest.raises(InvalidRollout, match=rf"logprobs\[{first}\] is "):
            publish(**arguments)


@pytest.mark.proves("A1")
def test_names_of_the_aipo_papers_are_taken_for_what_sampled() -> None:
    named = {"actor_logprobs": [-0.5, -0.25, -1.0], "actor_policy_version": "step-7"}
    given = {k: v for k, v in sampled().items() if k not in ("logprobs", "policy_version")}
    fields = taken({**given, **named})
    assert fields["logprobs"] == np.array([-0.5, -0.25, -1.0], "<f4").tobytes()
    assert fields["policy_version"] == "step-7"
    assert "old_logprobs" not in fields
    assert publish(actor_logprobs=sampled()["logprobs"])["logprobs"] == publish()["logprobs"]
    policy = Policy("main", 0, 3, "step-3")
    both = {k: v for k, v in given.items() if k != "weight_step"}
    same = {"policy": policy, "actor_policy_version": "step-3"}
    taken({**both, **same})
    with pytest.raises(InvalidRollout, match="two names of one value"):
        taken({**both, **same, "actor_policy_version": "step-4"})


@pytest.mark.parametrize(
    "two", [{"actor_logprobs": [-0.5, -0.5, -2.0]}, {"actor_policy_version": "step-9"}]
)
def test_two_values_for_one_thing_are_refused(two: dict[str, Any]) -> None:
    with pytest.raises(InvalidRollout, match=r"two names of one value.*old_logprobs"):
        publish(**two)


def test_metadata_may_hold_numbers_of_numpy() -> None:
    given = {
        "score": np.float32(0.5),
        "ids": [np.int64(7), np.array(8), np.longdouble(0.25)],
        "good": {"at": np.bool_(True)},
    }
    plain = {"score": 0.5, "ids": [7, 8, 0.25], "good": {"at": True}}
    found = publish(
        metadata=given, messages=[given], rewards={"a": np.array(2), "b": np.float16(1)}
    )
    assert json.loads(found["metadata"]) == plain
    assert json.loads(found["messages"]) == [plain]
    assert found["rewards"] == {"a": 2.0, "b": 1.0}


def test_flags_and_numbers_may_be_of_numpy() -> None:
    given = {
        "is_last_segment": np.bool_(False),
        "segment_idx": np.int64(3),
        "rollout_uid": "u",
        "group_size": np.int8(2),
    }
    found = publish(**given)
    assert {name: found[name] for name in given} == given
    assert type(found["is_last_segment"]) is bool


def test_a_sum_of_old_log_probs_that_is_0_is_kept() -> None:
    assert publish(old_logprobs=0.0)["old_logprob_sum"] == 0.0


@pytest.mark.parametrize("name", ["logprobs", "actor_logprobs"])
@pytest.mark.parametrize("number", [-3.0, -3, np.float32(-3), np.array(-3.0)])
def test_log_probs_may_be_one_sum(name: str, number: Any) -> None:
    given = {key: value for key, value in sampled().items() if key != "logprobs"}
    fields = taken({**given, name: number})
    assert (fields["logprobs"], fields["logprob_sum"]) == (None, -3.0)


@pytest.mark.parametrize("number", [math.nan, math.inf, 1.5])
def test_a_sum_of_log_probs_is_finite_and_not_positive(number: float) -> None:
    with pytest.raises(InvalidRollout, match="logprobs is "):
        publish(logprobs=number)


def test_what_is_not_given_takes_no_extras() -> None:
    nothing: dict[str, Any] = {
        "old_logprobs": None,
        "token_arrays": {},
        "attachments": {},
        "messages": [],
        "old_policy_version": "",
        "weight_step": 3,
    }
    found = logged({"example_id": "ex", **sampled(**nothing)})
    assert found.record.header["extras"] is None


def test_a_step_for_each_token_gives_the_oldest_as_the_rollouts() -> None:
    fields = publish(weight_step=np.array([7, 5, 6]))
    assert fields["weight_step"] == 5
    assert np.frombuffer(fields["weight_steps"], "<i8").tolist() == [7, 5, 6]


@pytest.mark.parametrize("number", [np.int64(7), np.array(7)])
def test_one_step_may_be_a_numpy_number(number: Any) -> None:
    assert publish(weight_step=number)["weight_step"] == 7


@pytest.mark.parametrize("reward", [1, 1.0, np.float32(1.0), np.array(1.0)])
def test_a_reward_may_be_any_number(reward: Any) -> None:
    assert publish(reward=reward)["reward"] == 1.0


def test_a_rollout_may_have_no_output() -> None:
    """As one that was aborted before its first token."""
    fields = publish(output_tokens=[], logprobs=[], token_rewards=[])
    assert (fields["prompt_count"], fields["token_count"]) == (2, 0)
    assert (fields["logprobs"], fields["token_rewards"]) == (b"", b"")


def test_a_rollout_may_have_no_prompt() -> None:
    assert publish(prompt_tokens=[])["prompt_count"] == 0


@pytest.mark.parametrize("empty", [(), np.array([], np.int64)])
def test_a_rollout_of_no_token_at_all_is_refused(empty: Any) -> None:
    with pytest.raises(InvalidRollout, match="prompt_tokens is empty, and nothing was sampled; "):
        publish(prompt_tokens=empty, output_tokens=empty, logprobs=None)


def test_an_evaluation_may_be_a_reward_alone() -> None:
    fields = publish(prompt_tokens=[], output_tokens=[], logprobs=None, split="eval")
    assert (fields["prompt_count"], fields["token_count"]) == (0, 0)


def test_a_big_endian_token_array_travels_little_endian() -> None:
    fields = publish(token_arrays={"k": np.array([[1], [2], [3]], ">f8")})
    data = np.array([1.0, 2.0, 3.0], "<f8").tobytes()
    assert fields["token_arrays"] == {"k": NamedArray("<f8", (1,), data)}


class Named(str, Enum):  # noqa: UP042 - the case of this test
    """Python's older way of named texts, whose ``str`` is their name."""

    EVAL = "eval"
    SEVEN = "step-7"


def test_members_of_a_str_enumeration_are_their_values() -> None:
    fields = publish(split=Named.EVAL, policy_version=Named.SEVEN, example_id=Named.SEVEN)
    assert (fields["split"], fields["policy_version"]) == ("eval", "step-7")
    assert fields["example_id"] == "step-7"


def test_a_name_of_another_system_is_told_ours() -> None:
    with pytest.raises(TypeError, match="'environment_name'; give environment"):
        publish(environment_name="math")
