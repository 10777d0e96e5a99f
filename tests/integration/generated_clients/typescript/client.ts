// Submits a trajectory of two steps, and what may follow it, through the generated types.
import createClient from "openapi-fetch";
import type { components, paths } from "./api.js";

declare const process: { argv: string[] };
const [url, token] = process.argv.slice(2) as [string, string];
const client = createClient<paths>({
  baseUrl: url,
  headers: { Authorization: `Bearer ${token}` },
});
const environment = "math";

function taken<T>(answer: { data?: T; error?: unknown }): T {
  if (answer.data === undefined) throw new Error(JSON.stringify(answer.error));
  return answer.data;
}

type StepBody = components["schemas"]["StepBody"];
const step = (trajectory_uid: string, step_index: number, is_last: boolean): StepBody => ({
  trajectory_uid,
  step_index,
  is_last,
  prompt_uid: "ts-prompt",
  n_rollouts: 2,
  prompt_ids: [101, 7592],
  response_ids: [2023, 2003],
  logprobs: [-0.11, -0.52],
  loss_mask: [true, false],
  token_arrays: { entropies: { dtype: "float32", shape: [2], data: [0.5, 1] } },
  policy_version: "step-1",
  weight_step: 1,
  reward: 1,
});

const submitted = await client.POST("/v1/environments/{environment}/steps", {
  params: { path: { environment }, query: { durable: true } },
  body: { steps: [step("ts-0", 0, false), step("ts-0", 1, true), step("ts-1", 0, false)] },
});
const failed = await client.POST(
  "/v1/environments/{environment}/trajectories/{trajectory_uid}/fail",
  {
    params: { path: { environment, trajectory_uid: "ts-1" }, query: { durable: true } },
    body: { prompt_uid: "ts-prompt", reason: "crashed" },
  },
);
const scored = await client.POST(
  "/v1/environments/{environment}/trajectories/{trajectory_uid}/score",
  {
    params: { path: { environment, trajectory_uid: "ts-0" } },
    body: { prompt_uid: "ts-prompt", reward: 0.5, scorer: "tests" },
  },
);
const refused = await client.POST("/v1/environments/{environment}/steps", {
  params: { path: { environment } },
  body: { steps: [] },
});
console.log(
  JSON.stringify({
    submitted: taken(submitted),
    failed: taken(failed),
    scored: taken(scored),
    refused: refused.error?.field,
  }),
);
