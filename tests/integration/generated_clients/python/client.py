# mypy: disable-error-code="import-not-found"
"""Submits two trajectories, and what may follow them, through the generated client."""

import json
import sys

from generated_client import AuthenticatedClient, models
from generated_client.api.default import (
    complete_trajectory,
    fail_trajectory,
    newest_policy,
    score_trajectory,
    submit_steps,
)

url, token = sys.argv[1:]
client = AuthenticatedClient(url, token, raise_on_unexpected_status=True)
array = models.TokenArray(models.TokenArrayDtype.FLOAT32, [2], [0.5, 1.0])
arrays = models.StepBodyTokenArraysType0()
arrays["entropies"] = array
prompt, math = "py-prompt", "math"


def step(trajectory: str, index: int = 0) -> models.StepBody:
    return models.StepBody(
        prompt_ids=[101, 7592],
        response_ids=[2023, 2003],
        logprobs=[-0.11, -0.52],
        loss_mask=[True, False],
        token_arrays=arrays,
        trajectory_uid=trajectory,
        prompt_uid=prompt,
        step_index=index,
        n_rollouts=2,
        policy_version="step-1",
        weight_step=1,
    )


steps = models.StepsBody([step("py-0"), step("py-1")])
end = models.CompleteBody(prompt, steps=1)
failure = models.FailBody(prompt, "crashed")
score = models.ScoreBody(prompt, 0.5, "tests", flags=["slow"])
wrong = models.StepsBody([step("py-0", -1)])
durable = {"client": client, "durable": True}
answers = {
    "submitted": submit_steps.sync(math, body=steps, **durable),
    "completed": complete_trajectory.sync(math, "py-0", body=end, **durable),
    "failed": fail_trajectory.sync(math, "py-1", body=failure, **durable),
    "scored": score_trajectory.sync(math, "py-0", body=score, client=client),
}
refused = submit_steps.sync(math, body=wrong, client=client)
no_policy = newest_policy.sync(math, client=client)
found = {name: one.to_dict() for name, one in answers.items()}
json.dump({**found, "refused": refused.field, "policy": no_policy.type_}, sys.stdout)
