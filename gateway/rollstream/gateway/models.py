"""What requests and answers hold. Pydantic checks a body in one pass over its bytes, in Rust: no
token is looked at in Python."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, JsonValue, WithJsonSchema

from rollstream.producers import Step
from rollstream.schemas.order import UNKNOWN_STEP
from rollstream.schemas.rules import (
    INT_MAX,
    LOGPROB_MAX,
    LONG_MAX,
    NAME_CHARS_MAX,
    VERSION_BYTES_MAX,
)

STEPS_MAX = 1_024  # Of one call, so that checking it holds the event loop for milliseconds.

Name = Annotated[str, Field(min_length=1, max_length=NAME_CHARS_MAX)]
# The first bad value ends the check, so that a bad body costs no more than a good one.
TokenIds = Annotated[list[Annotated[int, Field(ge=0, le=INT_MAX)]], Field(fail_fast=True)]
LogProbs = Annotated[list[Annotated[FiniteFloat, Field(le=LOGPROB_MAX)]], Field(fail_fast=True)]

# Told whole, since a path of an OpenAPI document cannot refer to definitions of its own.
Metadata = Annotated[dict[str, JsonValue], WithJsonSchema({"type": "object"})]


class Body(BaseModel):
    """No unknown keys, and no text or truth value for a number."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )


class StepBody(Body):
    """One step of a trajectory: what the policy saw, and what it answered."""

    prompt_ids: TokenIds
    """Token ids of the whole context that the policy saw."""
    response_ids: TokenIds
    """Token ids that it sampled."""
    logprobs: LogProbs | None = None
    """Natural logarithms of the probabilities of `response_ids`, under the policy that sampled; one
    for each."""
    reward: FiniteFloat | None = None
    """Of this step; null: it has none, and the trajectory's return is the sum of others'."""
    trajectory_uid: Name
    """Unique among all; with `step_index` it makes a retry harmless."""
    prompt_uid: Name
    """Of the prompt whose trajectories make one group."""
    step_index: Annotated[int, Field(ge=0, le=INT_MAX)]
    """From 0, without gaps; steps may come in any order."""
    policy_version: Annotated[str, Field(min_length=1, max_length=VERSION_BYTES_MAX)]
    """Of the weights that sampled."""
    weight_step: Annotated[int, Field(ge=UNKNOWN_STEP, le=LONG_MAX)]
    """Optimizer steps behind them; -1: not known, and no bound on lag holds."""
    is_last: bool = False
    """Whether the trajectory ends with it."""
    n_rollouts: Annotated[int, Field(ge=1, le=INT_MAX)] | None = None
    """Trajectories of this prompt, best in each of its steps; null: as before, else the
    environment's `target_group_size`."""
    metadata: Metadata | None = None
    """Whatever JSON can hold."""
    policy_epoch: Annotated[int, Field(ge=0, le=INT_MAX)] = 0
    """Counts the resumes of the policy's trainer."""
    lineage: Annotated[str, Field(max_length=NAME_CHARS_MAX)] = ""
    """Of the model; policies are compared only within one."""
    example_id: Annotated[str, Field(max_length=NAME_CHARS_MAX)] = ""
    """The problem that was worked on; empty: `prompt_uid`."""

    def step(self) -> Step:
        """The same for a writer."""
        given = self.__dict__.copy()
        given["prompt_ids"] = np.array(self.prompt_ids, np.int32)
        given["response_ids"] = np.array(self.response_ids, np.int32)
        if self.logprobs is not None:
            given["logprobs"] = np.array(self.logprobs, np.float32)
        return Step(**given)


class StepsBody(Body):
    """Steps, of any trajectories of one environment."""

    steps: Annotated[list[StepBody], Field(min_length=1, max_length=STEPS_MAX, fail_fast=True)]
    """All of them are taken, or none is."""


class CompleteBody(Body):
    """The end of a trajectory, where no step said it."""

    prompt_uid: Name
    """Of its prompt."""
    steps: Annotated[int, Field(ge=1, le=INT_MAX)] | None = None
    """How many it has: it is complete once all of them are in the log, in whatever order calls
    arrive. null: those that are in the log before this; give it where calls overlap, or where there
    are several gateways."""


class Accepted(BaseModel):
    """The answer of a call whose steps were taken."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    accepted: int
    """Steps, or ends of trajectories, of this call."""
    durable: bool
    """Whether the broker has them; where not, they are on their way."""
    undelivered: int
    """How many of this environment this process answered with 202 before and could not deliver."""


class Health(BaseModel):
    """The answer of probes."""

    status: str


class Problem(BaseModel):
    """Problem details (RFC 9457); `field`, `value` and `remedy` where one value is wrong."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    type: str
    """Which kind, for programs."""
    title: str
    status: int
    detail: str
    """What was wrong, the value, and what to do."""
    field: str | None = None
    value: str | None = None
    remedy: str | None = None
