"""``rollstream files``"""

from __future__ import annotations

import json

import typer

from rollstream.console.options import CONFIG_FILE, AsJson, ConfigOption
from rollstream.console.services import services_of
from rollstream.runtime.config.load import load_config
from rollstream.store import read_root_id, visible_files
from rollstream.store.errors import BlobMissing
from rollstream.store.retired import all_retired


def files(
    context: typer.Context, config: ConfigOption = CONFIG_FILE, as_json: AsJson = False
) -> None:
    """Lists the Parquet files that are part of the data set.

    It needs no Kafka. Exit code 1 if the root is missing.
    """
    settings = load_config(config)
    blobs = services_of(context).bounded_store(settings)
    paths = [blobs.address(path) for path in visible_files(blobs)]
    if not paths and not read_root_id(blobs).root_id:
        raise BlobMissing(
            f"{settings.store.root} is missing or no root of a deployment: it has no files and no "
            "id; correct store.root, or mount what should be there; for a new deployment run "
            "`rollstream topics create`"
        )
    if not paths and all_retired(blobs):
        typer.echo(
            f"every file under {settings.store.root} was retired: each sampler was done with it, "
            "and `rollstream retain` or retain_after_hours asked for it",
            err=True,
        )
    elif not paths:
        typer.echo(
            f"no manifest under {settings.store.root} names a file: nothing was sealed there yet, "
            "or sealers have another store.root; `rollstream status` shows what is stuck",
            err=True,
        )
    typer.echo(json.dumps(paths, indent=2) if as_json else "\n".join(paths), nl=bool(paths))
