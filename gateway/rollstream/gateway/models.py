"""What requests and answers hold. msgspec checks a body in one pass over its bytes, in C: no token
is looked at in Python."""

from __future__ import annotations

from collections.abc import Mapping
from struct import pack
from sys import getsizeof
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from rollstream.producers import Step
from rollstream.producers.rollouts.fields import checked
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.metadata import ObjectText
from rollstream.schemas.order import UNKNOWN_STEP
from rollstream.schemas.rules import (
    FLOAT32_MAX,
    INT_MAX,
    LOGPROB_MAX,
    LONG_MAX,
    NAME_CHARS_MAX,
    UID_PATTERN,
    VERSION_BYTES_MAX,
)

N_ROLLOUTS_MAX = 65_536  # A group that waits for more than ever come is never whole.
STEPS_MAX = 1_024  # Of one call, so that checking it holds the event loop for milliseconds.
_STEP_BYTES = 1_024  # Of its objects, about: three arrays, and the numbers.
TOKEN_ID_MAX = 2**24  # No vocabulary comes near; a small id in another byte order is above.
_I4, _F4 = np.dtype("<i4"), np.dtype("<f4")

_TokenId = Annotated[int, Meta(ge=0, le=INT_MAX)]
_Uid = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=NAME_CHARS_MAX,
        extra_json_schema={"pattern": UID_PATTERN},  # The writer checks it.
    ),
]
_LogProb = Annotated[float, Meta(ge=-FLOAT32_MAX, le=LOGPROB_MAX)]


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """No unknown keys, and no text or truth value for a number.

    Attributes:
        takes: by each path in it, without indexes, what to give there.
    """

    takes: ClassVar[Mapping[str, str]]


_B64 = "[A-Za-z0-9+/]"
_BYTES = Meta(
    description="4 bytes for each value, little-endian, in base64 with padding (RFC 4648).",
    # So many characters as whole values have.
    extra_json_schema={
        "pattern": f"^({_B64}{{16}})*({_B64}{{5}}[AQgw]==|{_B64}{{10}}[AEIMQUYcgkosw048]=)?$"
    },
)


class PackedTokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Token ids as the bytes of an array."""

    dtype: Literal["int32"]
    base64: Annotated[bytes, _BYTES]


class PackedLogProbs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Log-probabilities as the bytes of an array."""

    dtype: Literal["float32"]
    base64: Annotated[bytes, _BYTES]


class StepBody(Body, frozen=True, kw_only=True):
    """One step of a trajectory: the context that the policy saw, and its answer."""

    prompt_ids: Annotated[
        list[_TokenId] | PackedTokens,
        Meta(description="Token ids of the whole context that the policy saw."),
    ]
    response_ids: Annotated[
        list[_TokenId] | PackedTokens, Meta(description="Token ids that the policy sampled.")
    ]
    logprobs: Annotated[
        list[_LogProb] | PackedLogProbs | None,
        Meta(
            description="Natural logarithms of the probabilities of `response_ids` under the "
            "policy that sampled, one for each token."
        ),
    ] = None
    reward: Annotated[
        Annotated[float, Meta(ge=-FLOAT32_MAX, le=FLOAT32_MAX)] | None,
        Meta(
            description="The reward of this step. The trajectory's return is the sum of its steps' "
            "rewards. null: this step has none of its own."
        ),
    ] = None
    trajectory_uid: Annotated[
        _Uid,
        Meta(
            description="The name of the trajectory, unique within its prompt. A step with the "
            "same `prompt_uid`, `trajectory_uid` and `step_index` counts once.",
        ),
    ]
    prompt_uid: Annotated[
        _Uid,
        Meta(
            description="The name of the prompt. Its trajectories make one group. Use a new one "
            "each time a problem is sampled.",
        ),
    ]
    step_index: Annotated[
        int,
        Meta(
            ge=0,
            le=INT_MAX,
            description="Counts the steps of the trajectory from 0. They may come in any order.",
        ),
    ]
    policy_version: Annotated[
        Annotated[str, Meta(min_length=1, max_length=VERSION_BYTES_MAX)]
        | Annotated[int, Meta(ge=0, le=LONG_MAX)],
        Meta(
            description="The policy that sampled, as `GET …/policy` returns it. A number is its "
            "`weight_step`."
        ),
    ]
    weight_step: Annotated[
        Annotated[int, Meta(ge=UNKNOWN_STEP, le=LONG_MAX)] | None,
        Meta(
            description="Optimizer steps behind the policy's weights. null: as the trainer "
            "announced for `policy_version`. -1: not known: a pool never marks such a step "
            "off-policy, and a sampler with a limit of lag drops it."
        ),
    ] = None
    is_last: Annotated[bool, Meta(description="Whether the trajectory ends here.")] = False
    n_rollouts: Annotated[
        Annotated[int, Meta(ge=1, le=N_ROLLOUTS_MAX)] | None,
        Meta(
            description="Trajectories of this prompt. Give it in each step. null: as an earlier "
            "step of the prompt said. If no step says it, the prompt is finished when all its "
            "trajectories have ended and none began for `prompt_idle_s`."
        ),
    ] = None
    metadata: Annotated[dict[str, Any] | None, Meta(description="Any JSON object.")] = None
    policy_epoch: Annotated[
        Annotated[int, Meta(ge=0, le=INT_MAX)] | None,
        Meta(
            description="The `epoch` of the policy, as `GET …/policy` returns it. null: as the "
            "trainer announced for `policy_version`. Needed if the version was not announced and "
            "weights of two epochs have this `weight_step`."
        ),
    ] = None
    lineage: Annotated[
        Annotated[str, Meta(max_length=NAME_CHARS_MAX)] | None,
        Meta(
            description="The model in training. Policies are compared only within one. null: the "
            "only one."
        ),
    ] = None
    example_id: Annotated[
        str,
        Meta(
            max_length=NAME_CHARS_MAX,
            description="The problem, the same in all steps of a prompt. Empty: `prompt_uid`.",
        ),
    ] = ""
    awaits_score: Annotated[
        bool,
        Meta(
            description="Whether the prompt waits for a score if this step ends its trajectory "
            "without a reward."
        ),
    ] = False

    def step(self) -> Step:
        """The same for a writer.

        Raises:
            InvalidRollout: the bytes of a compact form are of no whole number of values, or the
                metadata is none.
        """
        given = msgspec.structs.asdict(self)
        given["prompt_ids"] = _array("prompt_ids", self.prompt_ids, "i", _I4)
        given["response_ids"] = _array("response_ids", self.response_ids, "i", _I4)
        if self.logprobs is not None:
            given["logprobs"] = _array("logprobs", self.logprobs, "f", _F4)
        given["metadata"] = _held(self.metadata)
        return Step(**given)


def held_bytes(step: Step) -> int:
    """About how much memory a step of a body takes: a text with one wide character has up to four
    times its JSON's bytes, and a step of one token ten times."""
    arrays = [one for one in step if isinstance(one, np.ndarray)]
    texts = [one for one in step if isinstance(one, str)]
    return _STEP_BYTES + sum(one.nbytes for one in arrays) + sum(map(getsizeof, texts))


def _held(metadata: dict[str, Any] | None) -> ObjectText | None:
    """As text, since a call may be long in being answered, and objects take many times their
    JSON."""
    return None if metadata is None else ObjectText(checked("metadata", metadata))


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
    _check_order(name, found)
    return found


def _check_order(name: str, found: NDArray[Any]) -> None:
    """Refuses values that no model gives and that bytes in another order look like."""
    if found.dtype == _I4:
        odd = found > TOKEN_ID_MAX
    else:
        odd = (found != 0) & (np.abs(found) < np.finfo(np.float32).tiny)
    if odd.any():
        at = int(np.flatnonzero(odd)[0])
        remedy = "no model gives that: base64 has each value little-endian, its lowest byte first, "
        raise InvalidRollout(f"{name}[{at}]", found[at].item(), f"{remedy}in NumPy <i4 and <f4")


_NAME = f"give a text of 1 to {NAME_CHARS_MAX} characters, none of them a control character"
_WHOLE = f"give a whole number from 0 to {INT_MAX}, without quotes and without .0"
_STEPS = f"give a list of 1 to {STEPS_MAX} steps"
_TOKENS = (
    f"give a list of token ids, whole numbers from 0 to {INT_MAX} without quotes and without .0, "
    'or {"dtype": "int32", "base64": …}'
)
_LOGPROBS = (
    f"give a list of finite numbers of at most {LOGPROB_MAX:g}, or "
    '{"dtype": "float32", "base64": …}, or null'
)
_BASE64 = "give the base64 (RFC 4648, with padding) of 4 bytes for each value, the lowest first"


class StepsBody(Body, frozen=True, kw_only=True):
    """Steps of any trajectories of one environment."""

    takes = {
        "": 'give an object: {"steps": […]}',
        "steps": _STEPS,
        "steps[]": 'give an object: {"prompt_ids": […], …}',
        "steps[].prompt_ids": _TOKENS,
        "steps[].prompt_ids.dtype": 'give "int32"',
        "steps[].prompt_ids.base64": _BASE64,
        "steps[].response_ids": _TOKENS,
        "steps[].response_ids.dtype": 'give "int32"',
        "steps[].response_ids.base64": _BASE64,
        "steps[].logprobs": _LOGPROBS,
        "steps[].logprobs.dtype": 'give "float32"',
        "steps[].logprobs.base64": _BASE64,
        "steps[].reward": f"give a finite number without quotes, from {-FLOAT32_MAX:.8g} to "
        f"{FLOAT32_MAX:.8g}, or null",
        "steps[].trajectory_uid": _NAME,
        "steps[].prompt_uid": _NAME,
        "steps[].step_index": _WHOLE,
        "steps[].policy_version": f"give a text of 1 to {VERSION_BYTES_MAX} characters, or the "
        "weight_step as a whole number",
        "steps[].weight_step": f"give a whole number from {UNKNOWN_STEP} to {LONG_MAX}, without "
        "quotes and without .0, or null",
        "steps[].is_last": "give true or false, without quotes",
        "steps[].awaits_score": "give true or false, without quotes",
        "steps[].n_rollouts": f"give a whole number from 1 to {N_ROLLOUTS_MAX}, without quotes and "
        "without .0, or null",
        "steps[].metadata": "give an object, with numbers that fit 64 bits, or null",
        "steps[].policy_epoch": f"{_WHOLE}, or null",
        "steps[].lineage": f"give a text of at most {NAME_CHARS_MAX} characters, or null",
        "steps[].example_id": f"give a text of at most {NAME_CHARS_MAX} characters",
    }

    steps: Annotated[
        list[StepBody],
        Meta(min_length=1, max_length=STEPS_MAX, description="All of them are taken, or none."),
    ]


class CompleteBody(Body, frozen=True, kw_only=True):
    """The end of a trajectory whose last step had no `is_last`."""

    takes = {
        "": 'give an object: {"prompt_uid": …}',
        "prompt_uid": _NAME,
        "steps": f"give a whole number from 1 to {INT_MAX}, without quotes and without .0, or null",
    }

    prompt_uid: Annotated[_Uid, Meta(description="The prompt of the trajectory.")]
    steps: Annotated[
        Annotated[int, Meta(ge=1, le=INT_MAX)] | None,
        Meta(
            description="How many steps the trajectory has. It is complete when all of them are in "
            "the log. null: the newest step that is in the log before this call is the last one. "
            "Give it if calls overlap, or if there are several gateways."
        ),
    ] = None


class CallQuery(BaseModel):
    """The query parameters of a call."""

    model_config = ConfigDict(extra="forbid")

    durable: bool = Field(
        default=False,
        description="true: answers 200 when the steps are in the log. false: answers 202 at once.",
    )


class Accepted(BaseModel):
    """The answer to a call that was taken."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    accepted: int
    """Steps, or ends of trajectories, that this call submitted."""
    durable: bool
    """Whether they are in the log. If not, they are on their way."""
    undelivered: int
    """Steps and ends of this environment that this process answered with 202 and lost since it
    started. If it rises, submit those steps again."""


class PolicyQuery(BaseModel):
    """The query parameters of a request for the policy."""

    model_config = ConfigDict(extra="forbid")

    lineage: str | None = Field(
        default=None, description="The model. Needed if two are in training."
    )


class NewestPolicy(BaseModel):
    """The newest policy that the environment's trainer published."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    version: str
    """Its name: the `policy_version` of the steps that it samples."""
    step: int
    """Optimizer steps behind it: the `weight_step` of the steps that it samples."""
    epoch: int
    """Counts the branches of its trainer: the `policy_epoch` of the steps that it samples."""
    lineage: str
    """The model in training."""
    weights: str
    """Where its weights are, as the trainer published it."""
    metadata: dict[str, Any]
    """What else the trainer published."""


class Health(BaseModel):
    """The answer to a probe."""

    status: str


class Problem(BaseModel):
    """Problem details (RFC 9457). `field` and `value` are there if one value is wrong."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    type: str
    """The kind of problem, for programs."""
    title: str
    status: int
    detail: str
    """What is wrong, the value, and what to do."""
    field: str | None = None
    """The wrong value's place, such as `steps[3].prompt_ids[7]`, or the part of the request."""
    value: str | None = None
    """The wrong value, shortened."""
    remedy: str | None = None
    """What to do."""
