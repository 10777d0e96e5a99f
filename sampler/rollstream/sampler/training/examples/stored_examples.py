"""Reads examples that ``create_and_store_batch`` wrote, from the files alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollstream.runtime.config.load import configured
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.sampler.batch.token_arrays import TokenArrays
from rollstream.sampler.errors import InvalidRequest
from rollstream.sampler.training.examples.examples import PER_TOKEN, Examples
from rollstream.schemas.fields import renamed
from rollstream.store.blobs import Blobs
from rollstream.store.example_files import ExampleColumns, read_examples, write_examples
from rollstream.store.open import open_store

_TOKEN_ARRAY = "token_arrays/"
_ROWS = {
    "row": "rows",
    "turns": "turns",
    "apart": "apart",
    "trajectory": "trajectories",
    "weight_step": "weight_steps",
}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StoredExamples:
    """Examples as they were made, and what they were made of.

    Attributes:
        step: of the batch.
        batch_id: of the batch as it was recorded.
        digest: of that batch.
        settings: the maker's, with its name and version.
        metadata: that the maker gave.
        examples: the examples.
    """

    examples: Examples
    step: int
    batch_id: str
    digest: bytes
    settings: Mapping[str, Any]
    metadata: Mapping[str, float]


def stored_examples(
    examples_id: str,
    *,
    config: RollstreamConfig | Path | str | None = None,
    store: Blobs | None = None,
) -> StoredExamples:
    """Reads examples by the id that ``create_and_store_batch`` returned; the same bytes as then.

    Args:
        examples_id: that ``create_and_store_batch`` returned.
        config: the configuration, or the path of its file, whose ``store.root`` is read.
        store: instead of the configured one.

    Raises:
        BlobMissing: there are none of that id.
        CorruptFile: their file is damaged.
        ConfigError: the configuration is wrong.
        InvalidRequest: neither a configuration nor a store is given.
    """
    if store is None:
        if config is None:
            raise InvalidRequest("config is None; give a configuration, or store=")
        store = open_store(configured(config).store)
    columns, about = read_examples(store, examples_id)
    scalars: Any = columns.scalars
    named = {
        renamed().get(name, name): values
        for column, values in columns.ragged.items()
        if (name := column.removeprefix(_TOKEN_ARRAY)) != column
    }
    examples = Examples(
        **{name: columns.ragged[name] for name in PER_TOKEN},
        **{field: scalars[name] for name, field in _ROWS.items()},
        offsets=columns.offsets,
        token_arrays=TokenArrays(named, {}),
        policy_versions=scalars["policy_version"],
    )
    return StoredExamples(
        examples=examples,
        step=about["step"],
        batch_id=about["batch_id"],
        digest=bytes.fromhex(about["digest"]),
        settings=about["settings"],
        metadata=about["metadata"],
    )


def store_examples(
    store: Blobs, examples_id: str, examples: Examples, about: Mapping[str, Any]
) -> None:
    """Writes what ``stored_examples`` reads; ``about`` has its other fields, as JSON can hold
    them. Raises as ``write_examples``."""
    scalars = {name: getattr(examples, field) for name, field in _ROWS.items()}
    scalars["policy_version"] = examples.policy_versions
    ragged = {name: getattr(examples, name) for name in PER_TOKEN}
    ragged |= {_TOKEN_ARRAY + name: values for name, values in examples.token_arrays.items()}
    write_examples(store, examples_id, ExampleColumns(scalars, ragged, examples.offsets), about)
