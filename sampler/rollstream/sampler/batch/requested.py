"""Which columns a batch is to have besides those that every batch has. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from rollstream.sampler.errors import ArrayMissing, ArraysDiffer, InvalidRequest, SamplerError
from rollstream.schemas.columns import ArraySignature

FIELDS = (
    *("rollout_uid", "segment_idx", "weight_step", "stop_reason", "reward"),
    *("prompt_tokens", "output_tokens", "logprobs", "loss_mask", "rewards"),
)
"""What every batch reads from the store."""
MIXED_FIELDS = ("policy_version", "policy_epoch")
"""What it reads besides of groups whose rows differ in it."""
ON_REQUEST = {
    "old_logprobs": "old_logprobs",
    "ref_logprobs": "ref_logprobs",
    "token_rewards": "token_rewards",
    "token_weight_steps": "weight_steps",
    "logprob_sums": "logprob_sum",
    "metadata": "metadata",
    "group_uids": "group_uid",
    "worker_ids": "worker_id",
    "created_ts": "created_ts",
    "trajectory_uids": "trajectory_uid",
}
"""The schema's columns that a batch may have: its name in the batch, and in the schema. Every other
name is that of an array which producers named."""
_SHOWN = 8  # Groups that a message names.
TOKEN_ARRAY = "token_arrays/"
"""Sets names of token arrays apart from those of the schema's columns."""


def column_names(columns: Sequence[str]) -> tuple[str, ...]:
    """The names, each once; ``InvalidRequest`` where it is no sequence of names."""
    named = isinstance(columns, Collection) and not isinstance(columns, str)
    if not (named and all(isinstance(name, str) and name for name in columns)):
        raise InvalidRequest(f"columns is {columns!r}; give a sequence of names: ('metadata',)")
    if "actor_logprobs" in columns:
        raise InvalidRequest(
            "columns names 'actor_logprobs', the log-probs of the policy that sampled; every batch "
            "has these as logprobs, so leave it out. What a trainer computed again is old_logprobs"
        )
    return tuple(dict.fromkeys(columns))


def token_array_names(columns: Iterable[str]) -> list[str]:
    """Those that are no columns of the schema."""
    return [name for name in columns if name not in ON_REQUEST]


def agreed_signatures(
    names: Iterable[str], of_groups: Sequence[Mapping[str, ArraySignature]]
) -> tuple[dict[str, ArraySignature], dict[str, SamplerError]]:
    """Dtype and trailing shape of those of these named arrays in which the groups of a batch, in
    the order of slots, agree; and for each other one why the batch does not have it."""
    agreed: dict[str, ArraySignature] = {}
    refused: dict[str, SamplerError] = {}
    for name in names:
        slots: dict[ArraySignature, list[int]] = {}
        for slot, of_group in enumerate(of_groups):
            if name in of_group:
                slots.setdefault(of_group[name], []).append(slot)
        if not slots:
            there = sorted(set().union(*of_groups))
            refused[name] = ArrayMissing(
                f"columns names {name!r}, which is none of {list(ON_REQUEST)} and no token array "
                f"of this batch's groups; they have {there}. Ask for the step again with one of "
                "these, or read other fields with batch.records(group)"
            )
            continue
        if len(slots) == 1:
            (agreed[name],) = slots
            continue
        differing = "; ".join(
            f"{signature.dtype} [n, *{signature.shape}] in groups {str(where[:_SHOWN])[1:-1]}"
            + (" and others" if len(where) > _SHOWN else "")
            for signature, where in sorted(slots.items())
        )
        refused[name] = ArraysDiffer(
            f"token array {name!r} is no one array in this batch (slots of the recorded batch): "
            f"{differing}; read it with batch.records(group), replace these groups, or publish it "
            "under two names"
        )
    return agreed, refused
