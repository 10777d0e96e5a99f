"""``publish`` takes what an ingest record holds: names, types and defaults."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_type_hints

import pytest

from rollstream.producers import (
    AsyncGroup,
    AsyncRolloutProducer,
    AsyncStepProducer,
    Group,
    RolloutProducer,
    ScoreProducer,
    StepProducer,
)
from rollstream.producers.rollouts.arguments import (
    AppendedArguments,
    Flags,
    Floats,
    Ints,
    ManyArguments,
    MemberArguments,
    RolloutArguments,
    SupportsArray,
    TurnArguments,
    WholeArguments,
)
from rollstream.producers.rollouts.fields import FIELDS, NEEDED, OTHER_NAMES
from rollstream.producers.rollouts.trajectory import AsyncTrajectory, Trajectory
from rollstream.schemas import rules
from rollstream.schemas.fields import REQUIRED_ARRAYS, RowField, row_fields

STAMPED = {"worker_id", "created_ts", "prompt_count", "token_count"}  # The producer knows better.
# Into weight_step, logprobs and old_logprobs.
FOLDED = {"weight_steps", "logprob_sum", "old_logprob_sum"}
UNFOLDED = {"policy"}  # Into what names the policy.
FOR_ALL = {
    *("policy", "policy_version", "weight_step", "policy_epoch", "lineage"),
    "old_policy_version",
}
OF_STEPS = {"trajectory_uid"}  # ``Step`` has it.
ARRAYS: Mapping[str, Any] = {"<i4": Ints, "<f4": Floats, "|b1": Flags}
PLAIN: Mapping[str, Any] = {
    "string": str,
    "int": int,
    "long": int,
    "double": float,
    "boolean": bool,
}
SHOWN: Mapping[str, Any] = {  # What is JSON, or named things, in the log.
    "metadata": Mapping[str, Any],
    "messages": Sequence[Mapping[str, Any]],
    "token_arrays": Mapping[str, SupportsArray],
    "attachments": Mapping[str, bytes],
    "rewards": Mapping[str, float],
    "weight_step": int | Ints,
    **dict.fromkeys(("logprobs", "old_logprobs"), Floats | float | None),
}


def wanted_type(field: RowField) -> Any:
    if field.name in SHOWN:
        return SHOWN[field.name]
    if field.column == "array":
        plain = ARRAYS[field.dtype]
        return plain if field.name in REQUIRED_ARRAYS else plain | None
    if isinstance(field.row_type, list):
        return PLAIN[field.row_type[1]] | None
    return PLAIN[field.row_type]


@pytest.mark.proves("A1")
def test_names_and_types_are_those_of_the_schema() -> None:
    hints = get_type_hints(RolloutArguments)
    fields = row_fields()
    assert set(FIELDS) == set(fields) - STAMPED - FOLDED - OF_STEPS
    assert set(hints) == set(FIELDS) | UNFOLDED | OTHER_NAMES.keys()
    for name, hint in hints.items():
        if name in UNFOLDED:
            continue
        assert hint == wanted_type(fields[OTHER_NAMES.get(name, name)]), name


@pytest.mark.proves("A1")
def test_many_members_have_the_arguments_of_whole_rollouts_with_a_value_for_each() -> None:
    one, many = get_type_hints(WholeArguments), get_type_hints(ManyArguments)
    assert many.keys() == one.keys()
    for name, hint in one.items():
        if OTHER_NAMES.get(name, name) in FOR_ALL:
            assert many[name] == (int if name == "weight_step" else hint), name
        else:
            of_each = Sequence[hint]  # type: ignore[valid-type]
            assert of_each in (many[name], *get_args(many[name])), name
        if type(None) in get_args(hint):  # None for all, too.
            assert type(None) in get_args(many[name]), name


@pytest.mark.proves("A1")
def test_defaults_are_those_of_the_schema() -> None:
    fields = row_fields()
    for name, (_, default) in FIELDS.items():
        if name in ("example_id", "policy_version"):
            assert default is NEEDED
            assert fields[name].required
            continue
        if name in ("environment", "rollout_uid"):  # The producer's own, and a new one.
            assert default == ""
            continue
        wire = fields[name].default
        if name in SHOWN and isinstance(default, Mapping):
            assert dict(default) == {}
            assert wire in ({}, "{}")
        elif isinstance(default, tuple):
            assert default == ()
            assert wire in ([], "")
        else:
            assert default == wire, name


OWN = {"environment", "lineage", "replica_id"}  # Where a call names none, the producer's.
DTYPES = {"<i4": "int32 [", "<f4": "float32 [n]", "|b1": "bool [n]"}
DESCRIBED = re.compile(r"^ {12}(\w+) \(([^)]+?)(?:, default:? ([^)]+))?\): +(\S.*)$", re.MULTILINE)


def test_help_describes_every_argument_with_its_type_and_default() -> None:
    described = {
        name: (shown, default)
        for name, shown, default, _ in DESCRIBED.findall(RolloutProducer.publish.__doc__ or "")
    }
    hints = get_type_hints(RolloutArguments)
    assert set(described) == set(hints)
    for name, (shown, default) in described.items():
        if name in UNFOLDED:
            continue
        own = OTHER_NAMES.get(name, name)
        field = row_fields()[own]
        if field.column == "array" and own not in SHOWN:
            assert shown.startswith(DTYPES[field.dtype]), name
        elif hints[name] in PLAIN.values():
            assert shown == hints[name].__name__
        assert shown.endswith(" or None") == (type(None) in get_args(hints[name])), name
        assert default == _shown_default(own), name


def test_help_states_the_limits() -> None:
    said = " ".join((RolloutProducer.publish.__doc__ or "").split())
    row, attached = rules.TOKEN_ROW_BYTES_MAX >> 20, rules.ATTACHED_BYTES_MAX >> 20
    assert f"at most {row} MiB a token, and {rules.TOKEN_ARRAYS_MAX} names" in said
    assert f"together at most {attached} MiB" in said


def _shown_default(name: str) -> str:
    if name in OWN:
        return "the producer's"
    if name == "rollout_uid":
        return "a new one"
    if name in ("policy", "weight_step"):  # One of them is needed.
        return ""
    default = FIELDS[name].default
    if default is NEEDED:
        return ""
    if isinstance(default, Mapping):
        return "{}"
    if default == ():
        return "[]" if name == "messages" else "empty"
    return repr(default)


@pytest.mark.parametrize("other", [AsyncRolloutProducer.publish, Group.publish, Trajectory.turn])
def test_other_functions_send_the_reader_there(other: Any) -> None:
    assert "``RolloutProducer.publish``" in (other.__doc__ or "")


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (RolloutProducer.publish, RolloutArguments),
        (AsyncRolloutProducer.publish, RolloutArguments),
        (Group.publish, MemberArguments),
        (AsyncGroup.publish, MemberArguments),
        (Group.publish_many, ManyArguments),
        (AsyncGroup.publish_many, ManyArguments),
        (Group.append, WholeArguments),
        (AsyncGroup.append, WholeArguments),
        (RolloutProducer.append_to_group, AppendedArguments),
        (AsyncRolloutProducer.append_to_group, AppendedArguments),
        (Trajectory.turn, TurnArguments),
        (AsyncTrajectory.turn, TurnArguments),
    ],
)
def test_signatures_show_the_arguments_with_their_defaults(function: Any, arguments: type) -> None:
    shown = dict(inspect.signature(function).parameters)
    assert shown.pop("self")
    assert set(shown) == set(get_type_hints(arguments))
    for name, parameter in shown.items():
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        own = OTHER_NAMES.get(name, name)
        some_needed = own in ("policy", "policy_version", "weight_step")
        expected = ... if some_needed else FIELDS[own].default
        assert parameter.default == expected


CALLS = {"close", "flush", "publish", "refusal", "stats"}
ROLLOUTS_CALLS = CALLS | {"admit", "append_to_group", "dispatch", "policy", "trajectory"}
STEPS_CALLS = ROLLOUTS_CALLS | {
    "submit_step",
    "submit_steps",
    "complete_trajectory",
    "fail_trajectory",
}


@pytest.mark.parametrize(
    ("producer", "names"),
    [
        (RolloutProducer, ROLLOUTS_CALLS),
        (AsyncRolloutProducer, {*ROLLOUTS_CALLS, "take_failures"}),
        (StepProducer, STEPS_CALLS),
        (AsyncStepProducer, {*STEPS_CALLS, "take_failures"}),
        (ScoreProducer, {*CALLS, "upsert_scores"}),
    ],
)
def test_producers_show_their_calls_and_not_those_of_their_engine(
    producer: type, names: set[str]
) -> None:
    assert {name for name in dir(producer) if not name.startswith("_")} == names
