"""Which columns a batch is to have besides those that every batch has. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from rollstream.sampler.errors import InvalidRequest
from rollstream.schemas.columns import ArraySignature

FIELDS = ("prompt_tokens", "output_tokens", "logprobs", "loss_mask", "rewards")
"""What every batch reads from the store; all others of its fields are in the seal log."""
ON_REQUEST = {
    "actor_logprobs": "actor_logprobs",
    "ref_logprobs": "ref_logprobs",
    "token_rewards": "token_rewards",
    "token_weight_steps": "weight_steps",
    "metadata": "metadata",
}
"""The schema's columns that a batch may have: its name in the batch, and in the schema. Every other
name is that of an array which producers named."""
TOKEN_ARRAY = "token_arrays/"
"""Sets names of token arrays apart from those of the schema's columns."""


def column_names(columns: Sequence[str]) -> tuple[str, ...]:
    """The names, each once; ``InvalidRequest`` where it is no sequence of names."""
    named = isinstance(columns, Collection) and not isinstance(columns, str)
    if not (named and all(isinstance(name, str) and name for name in columns)):
        raise InvalidRequest(f"columns is {columns!r}; give a sequence of names: ('metadata',)")
    return tuple(dict.fromkeys(columns))


def token_array_names(columns: Iterable[str]) -> list[str]:
    """Those that are no columns of the schema."""
    return [name for name in columns if name not in ON_REQUEST]


def agreed_signatures(
    names: Iterable[str], of_files: Iterable[Mapping[str, ArraySignature]]
) -> dict[str, ArraySignature]:
    """Dtype and trailing shape of each of these named arrays, over the files of a batch.

    Raises:
        InvalidRequest: no file has an array of that name, or they differ.
    """
    files, agreed = list(of_files), {}
    for name in names:
        found = sorted({of[name] for of in files if name in of})
        if not found:
            there = sorted(set().union(*files))
            raise InvalidRequest(
                f"columns names {name!r}, which is none of {list(ON_REQUEST)} and no token array "
                f"of this batch's groups; they have {there}. Ask for the step again with one of "
                "these, or read other fields with batch.records(group)"
            )
        if len(found) > 1:
            one, other = (f"{dtype} [n, *{shape}]" for dtype, shape in found[:2])
            raise InvalidRequest(
                f"token array {name!r} is {one} in some rollouts of this batch and {other} in "
                "others; ask for the step again without it and read it with batch.records(group), "
                "and publish it under two names from now on"
            )
        agreed[name] = found[0]
    return agreed
