"""The record that Rollstream's producer sends for a rollout that it sends alone."""

from __future__ import annotations

from benchmarks.workload import ENVIRONMENT, Rollout
from rollstream.schemas.ingest.encode import encode_entries
from rollstream.schemas.ingest.entry import Entry, NamedArray

PARTITIONS = 4


def encoded(rollout: Rollout, group_size: int) -> bytes:
    fields = {
        "example_id": rollout.example_id,
        "group_uid": rollout.group_uid,
        "group_size": group_size,
        "rollout_uid": rollout.uid,
        "metadata": "{}",
        "segment_idx": 0,
        "is_last_segment": True,
        "lineage": "",
        "policy_version": rollout.policy_version,
        "policy_epoch": 0,
        "weight_step": rollout.weight_step,
        "replica_id": "replica-0",
        "split": "train",
        "stop_reason": "stop",
        "old_policy_version": "",
        "created_ts": 1_700_000_000_000_000,
        "reward": rollout.reward,
        "prompt_count": len(rollout.prompt),
        "token_count": len(rollout.output),
        "prompt_tokens": rollout.prompt.tobytes(),
        "output_tokens": rollout.output.tobytes(),
        "logprobs": rollout.logprobs.tobytes(),
        "loss_mask": None,
    }
    if rollout.token_arrays:
        fields["token_arrays"] = {
            name: NamedArray(array.dtype.str, array.shape[1:], array.tobytes())
            for name, array in rollout.token_arrays.items()
        }
    return encode_entries(
        [Entry.of(fields)], environment=ENVIRONMENT, worker_id="worker-0", partitions=PARTITIONS
    )
