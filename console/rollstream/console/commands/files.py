"""``rollstream files``"""

from __future__ import annotations

import json

import typer

from rollstream.console.options import CONFIG_FILE, AsJson, ConfigOption
from rollstream.console.services import services_of
from rollstream.runtime.config.load import load_config
from rollstream.store import visible_files


def files(
    context: typer.Context, config: ConfigOption = CONFIG_FILE, as_json: AsJson = False
) -> None:
    """Lists the Parquet files that belong to the data set: those that manifests name."""
    settings = load_config(config)
    blobs = services_of(context).store(settings)
    paths = [str(blobs.local_path(path) or path) for path in visible_files(blobs)]
    if not paths:
        typer.echo(
            f"no manifest under {settings.store.root} names a file: nothing was sealed there yet, "
            "or sealers have another store.root; `rollstream status` shows what is stuck",
            err=True,
        )
    typer.echo(json.dumps(paths, indent=2) if as_json else "\n".join(paths), nl=bool(paths))
