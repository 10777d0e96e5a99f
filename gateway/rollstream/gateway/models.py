"""What requests and answers hold. msgspec checks a body in one pass over its bytes, in C: no token
is looked at in Python."""

from __future__ import annotations

import re
from inspect import cleandoc
from math import prod
from struct import pack
from sys import getsizeof
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from rollstream.producers import Step
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.metadata import ObjectText, object_text
from rollstream.schemas.order import UNKNOWN_STEP
from rollstream.schemas.rules import (
    FLOAT32_MAX,
    GROUP_SIZE_MAX,
    INT_MAX,
    LOGPROB_MAX,
    LOGPROB_MIN,
    LONG_MAX,
    NAME_CHARS_MAX,
    UID_PATTERN,
    VERSION_BYTES_MAX,
)

STEPS_MAX = 1_024  # Of one call, so that checking it holds the event loop for milliseconds.
SIDES_MAX = 8
_STEP_BYTES = 1_024  # Of its objects, about: three arrays, and the numbers.
TOKEN_ID_MAX = 2**24  # No vocabulary comes near; a small id in another byte order is above.
_I4, _F4 = np.dtype("<i4"), np.dtype("<f4")
_TINY = np.finfo(np.float32).tiny  # Of normal numbers, the least.

_Whole = Annotated[int, Meta(ge=0, le=INT_MAX)]
_Number = Annotated[float, Meta(ge=-FLOAT32_MAX, le=FLOAT32_MAX)]
_LogProb = Annotated[float, Meta(ge=LOGPROB_MIN, le=LOGPROB_MAX)]
_Name = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
_FilledName = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]
# The writer checks the pattern.
_Uid = Annotated[_FilledName, Meta(extra_json_schema={"pattern": UID_PATTERN})]
_Version = Annotated[str, Meta(min_length=1, max_length=VERSION_BYTES_MAX)]
_Int64 = Annotated[int, Meta(ge=-LONG_MAX - 1, le=LONG_MAX)]
_Long = Annotated[int, Meta(ge=0, le=LONG_MAX)]
_WeightStep = Annotated[int, Meta(ge=UNKNOWN_STEP, le=LONG_MAX)]
_Size = Annotated[int, Meta(ge=1, le=GROUP_SIZE_MAX)]
_Ints = Literal["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
_Floats = Literal["float16", "float32", "float64"]
_B64 = "[A-Za-z0-9+/]"
# So many characters as values of 4 bytes have.
_ATTRIBUTE = r"^    (\w+): (.*(?:\n     .*)*)"  # Of a docstring.
_WORDS = f"^({_B64}{{16}})*({_B64}{{5}}[AQgw]==|{_B64}{{10}}[AEIMQUYcgkosw048]=)?$"
_Words = Annotated[bytes, Meta(extra_json_schema={"pattern": _WORDS})]


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request, or a part of one: no unknown keys, and no text or truth value for a
    number."""


class Answer(msgspec.Struct, frozen=True):
    """The body of an answer."""


class PackedTokens(Body, frozen=True):
    """Token ids as the bytes of an array.

    Attributes:
        dtype: the type of each value.
        base64: 4 bytes for each value, little-endian, in base64 with padding (RFC 4648).
    """

    dtype: Literal["int32"]
    base64: _Words


class PackedLogProbs(Body, frozen=True):
    """Log-probabilities as the bytes of an array.

    Attributes:
        dtype: the type of each value.
        base64: 4 bytes for each value, little-endian, in base64 with padding (RFC 4648).
    """

    dtype: Literal["float32"]
    base64: _Words


class TokenArray(Body, frozen=True):
    """An array with one row for each of `response_ids`.

    Attributes:
        dtype: the type of each value, as NumPy names it.
        shape: the lengths of its axes. The first is the number of `response_ids`.
        data: the values, row by row (C order): a list, or their bytes, little-endian, in base64
            with padding.
    """

    dtype: Literal["bool", _Ints, _Floats]
    shape: Annotated[list[_Whole], Meta(min_length=1, max_length=SIDES_MAX)]
    data: list[bool | _Int64 | float] | bytes


class StepBody(Body, frozen=True, kw_only=True):
    """One step of a trajectory: the context that the policy saw, and its answer.

    Attributes:
        prompt_ids: Token ids of the whole context that the policy saw.
        response_ids: Token ids that the policy sampled.
        logprobs: Natural logarithms of the probabilities of `response_ids` under the policy that
            sampled, one for each token.
        loss_mask: Which of `response_ids` to train on, true or 1, one for each. null: all of them.
        token_arrays: Arrays of your own, by name. Batches have them under these names.
        reward: The reward of this step. The trajectory's return is the sum of its steps' rewards.
            null: this step has none of its own.
        trajectory_uid: The name of the trajectory, unique within its prompt. A step with the same
            `prompt_uid`, `trajectory_uid` and `step_index` counts once.
        prompt_uid: The name of the prompt. Its trajectories make one group. Use a new one each time
            a problem is sampled.
        step_index: Counts the steps of the trajectory from 0. They may come in any order.
        policy_version: The policy that sampled, as `GET …/policy` returns it. A number is its
            `weight_step`.
        weight_step: Optimizer steps behind the policy's weights. null: as the trainer announced for
            `policy_version`. -1: not known: a pool never marks such a step off-policy, and a
            sampler with a limit of lag drops it.
        is_last: Whether the trajectory ends here.
        n_rollouts: Trajectories of this prompt. Give it in each step. null: as an earlier step of
            the prompt said. If no step says it, the prompt is finished when all its trajectories
            have ended and none began for `prompt_idle_s`.
        metadata: Any JSON object.
        policy_epoch: The `epoch` of the policy, as `GET …/policy` returns it. null: as the trainer
            announced for `policy_version`. Needed if the version was not announced and weights of
            two epochs have this `weight_step`.
        lineage: The model in training. Policies are compared only within one. null: the only one.
        example_id: The problem, the same in all steps of a prompt. Empty: `prompt_uid`.
        awaits_score: Whether the prompt waits for a score if this step ends its trajectory without
            a reward.
    """

    prompt_ids: list[_Whole] | PackedTokens
    response_ids: list[_Whole] | PackedTokens
    logprobs: list[_LogProb] | PackedLogProbs | None = None
    loss_mask: list[bool | Annotated[int, Meta(ge=0, le=1)]] | None = None
    token_arrays: dict[str, TokenArray] | None = None
    reward: _Number | None = None
    trajectory_uid: _Uid
    prompt_uid: _Uid
    step_index: _Whole
    policy_version: _Version | _Long
    weight_step: _WeightStep | None = None
    is_last: bool = False
    n_rollouts: _Size | None = None
    metadata: dict[str, Any] | None = None
    policy_epoch: _Whole | None = None
    lineage: _Name | None = None
    example_id: _Name = ""
    awaits_score: bool = False

    def step(self) -> Step:
        """The same for a writer.

        Raises:
            InvalidRollout: the bytes of an array are of no whole number of values, or a value is
                none that it can have.
        """
        given = msgspec.structs.asdict(self)
        given["prompt_ids"] = _array("prompt_ids", self.prompt_ids, "i", _I4)
        given["response_ids"] = _array("response_ids", self.response_ids, "i", _I4)
        if self.logprobs is not None:
            given["logprobs"] = _array("logprobs", self.logprobs, "f", _F4)
        if self.loss_mask is not None:
            given["loss_mask"] = np.array(self.loss_mask, np.bool_)
        if self.token_arrays is not None:
            each = self.token_arrays.items()
            given["token_arrays"] = {name: _token_array(name, one) for name, one in each}
        if self.metadata is not None:  # As text: objects take many times their JSON.
            given["metadata"] = ObjectText(object_text("metadata", self.metadata))
        return Step(**given)


class StepsBody(Body, frozen=True):
    """Steps of any trajectories of one environment.

    Attributes:
        steps: All of them are taken, or none.
    """

    steps: Annotated[list[StepBody], Meta(min_length=1, max_length=STEPS_MAX)]


class CompleteBody(Body, frozen=True):
    """The end of a trajectory whose last step had no `is_last`.

    Attributes:
        prompt_uid: The prompt of the trajectory.
        steps: How many steps the trajectory has. It is complete when all of them are in the log.
            null: the newest step that is in the log before this call is the last one. Give it if
            calls overlap, or if there are several gateways.
    """

    prompt_uid: _Uid
    steps: Annotated[int, Meta(ge=1, le=INT_MAX)] | None = None


class FailBody(Body, frozen=True):
    """The end of a trajectory that will not be finished.

    Attributes:
        prompt_uid: The prompt of the trajectory.
        reason: Why it failed. The first 200 characters are kept.
        n_rollouts: Trajectories of this prompt, as in its steps. Give it if the trajectory may fail
            before the prompt's first step.
        example_id: The problem, as in the prompt's steps. Empty: `prompt_uid`.
    """

    prompt_uid: _Uid
    reason: _FilledName
    n_rollouts: _Size | None = None
    example_id: _Name = ""


class ScoreBody(Body, frozen=True):
    """A late score of a trajectory.

    Attributes:
        prompt_uid: The prompt of the trajectory.
        reward: It replaces the reward of the trajectory's last step.
        scorer: Who scores. Scores of one scorer have versions 1, 2, …; the newest counts.
        rewards: Named components of the reward.
        flags: Texts that stay with the score. Batches have them, and samplers filter by them.
        attempt: Names a try that may be repeated with another result and must count once.
    """

    prompt_uid: _Uid
    reward: _Number
    scorer: _FilledName
    rewards: dict[str, _Number] = msgspec.field(default_factory=dict)
    flags: list[_FilledName] = msgspec.field(default_factory=list)
    attempt: _Name = ""


def schemas(ref_template: str) -> dict[str, dict[str, Any]]:
    """The JSON Schemas of all bodies by name, with what their docstrings say of each field."""
    models = [*Answer.__subclasses__(), *Body.__subclasses__()]
    _, found = msgspec.json.schema_components(models, ref_template=ref_template)
    for model in models:
        about, _, attributes = cleandoc(model.__doc__ or "").partition("\n\nAttributes:\n")
        schema = found[model.__name__]
        schema["description"] = about
        for name, text in re.findall(_ATTRIBUTE, attributes, re.MULTILINE):
            schema["properties"][name]["description"] = " ".join(text.split())
        for each in schema["properties"].values():
            each.pop("default", None)  # Generators of clients take it for what is always there.
    return found


def held_bytes(step: Step) -> int:
    """About how much memory a step of a body takes: a text with one wide character has up to four
    times its JSON's bytes, and a step of one token ten times."""
    size: int = _STEP_BYTES + step.prompt_ids.nbytes + step.response_ids.nbytes
    for array in (step.logprobs, step.loss_mask, *(step.token_arrays or {}).values()):
        if array is not None:
            size += array.nbytes
    texts = (step.trajectory_uid, step.prompt_uid, step.example_id, step.lineage, step.metadata)
    return size + sum(map(getsizeof, texts))


def _array(
    name: str, given: list[Any] | PackedTokens | PackedLogProbs, code: str, dtype: np.dtype[Any]
) -> NDArray[Any]:
    if isinstance(given, list):
        return np.frombuffer(pack(f"<{len(given)}{code}", *given), dtype)
    if len(given.base64) % dtype.itemsize:
        size = len(given.base64)
        remedy = f"give {dtype.itemsize} for each value, as {given.dtype} has"
        raise InvalidRollout(f"{name}.base64", size, remedy, f"has {size} bytes")
    found = np.frombuffer(given.base64, dtype)
    # No model gives such values. Bytes in another order look like them.
    most = found.item(found.argmax()) if found.size else 0
    if most <= (TOKEN_ID_MAX if dtype is _I4 else -_TINY):  # As mostly: there are none.
        return found
    odd = found > TOKEN_ID_MAX if dtype is _I4 else (found != 0) & (np.abs(found) < _TINY)
    if odd.any():
        at = int(np.flatnonzero(odd)[0])
        remedy = "no model gives that: base64 has each value little-endian, its lowest byte first, "
        raise InvalidRollout(f"{name}[{at}]", found[at].item(), f"{remedy}in NumPy <i4 and <f4")
    return found


def _token_array(name: str, given: TokenArray) -> NDArray[Any]:
    dtype, data = np.dtype(given.dtype).newbyteorder("<"), given.data
    field = f"token_arrays[{name!r:.80}].data"
    size = prod(given.shape) * (dtype.itemsize if isinstance(data, bytes) else 1)
    if len(data) != size:
        unit = "bytes" if isinstance(data, bytes) else "values"
        remedy = f"give {size}, as shape {given.shape} of {given.dtype} has"
        raise InvalidRollout(field, len(data), remedy, f"has {len(data)} {unit}")
    if isinstance(data, bytes):
        return np.frombuffer(data, dtype).reshape(given.shape)
    exact = np.array(data)
    with np.errstate(over="ignore", invalid="ignore"):
        found = exact.astype(dtype)
        wrong = ~np.isfinite(found)
        if dtype.kind in "biu":
            low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            wrong |= (exact < low) | (exact >= high + 1) | (exact % 1 != 0)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise InvalidRollout(f"{field}[{at}]", data[at], f"give what {given.dtype} can hold")
    return found.reshape(given.shape)


class NoQuery(BaseModel, extra="forbid"):
    """A call without query parameters."""


class CallQuery(NoQuery):
    """The query parameters of a call."""

    durable: bool = Field(False, description="true: 200 when it is in the log. false: 202 at once.")


class PolicyQuery(NoQuery):
    """The query parameters of a request for the policy."""

    lineage: str | None = Field(None, description="The model. Needed if two are in training.")


class Accepted(Answer, frozen=True):
    """The answer to a call that was taken.

    Attributes:
        accepted: Steps, ends, or scores of trajectories that this call submitted.
        durable: Whether they are in the log. If not, they are on their way.
        undelivered: Steps and ends of this environment that this process answered with 202 and lost
            since it started. If it rises, submit those steps again.
    """

    accepted: int
    durable: bool
    undelivered: int


class NewestPolicy(Answer, frozen=True):
    """The newest policy that the environment's trainer published.

    Attributes:
        version: Its name: the `policy_version` of the steps that it samples.
        step: Optimizer steps behind it: the `weight_step` of the steps that it samples.
        epoch: Counts the branches of its trainer: the `policy_epoch` of the steps that it samples.
        lineage: The model in training.
        weights: Where its weights are, as the trainer published it.
        metadata: What else the trainer published.
    """

    version: str
    step: int
    epoch: int
    lineage: str
    weights: str
    metadata: dict[str, Any]


class Health(Answer, frozen=True):
    """The answer to a probe."""

    status: str


class Problem(Answer, frozen=True, omit_defaults=True):
    """Problem details (RFC 9457). `field` and `value` are there if one value is wrong.

    Attributes:
        type: The kind of problem, for programs.
        detail: What is wrong, the value, and what to do.
        field: The wrong value's place, such as `steps[3].prompt_ids[7]`, or the part of the
            request.
        value: The wrong value, shortened.
        remedy: What to do.
    """

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None
    value: str | None = None
    remedy: str | None = None
