"""The entry point of the ``rollstream`` script. Imports nothing that only an extra installs."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec

from rollstream.runtime.extras import how_to_install

NEEDS = ("typer", "rich", "pyarrow", "pydantic")
INTERRUPTED = 130  # As shells have it: 128 + SIGINT.


def main() -> None:
    """Runs the command line. Without the ``console`` extra it prints what to install and exits with
    code 1. Ctrl-C while it is being loaded ends it with exit code 130, as it does later."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"rollstream: the command line needs {', '.join(missing)}; "
            f"{how_to_install('console')}\n"
        )
        raise SystemExit(1)
    try:
        app = importlib.import_module("rollstream.console.app").build("".join(sys.argv[1:2]))
    except KeyboardInterrupt:  # Loading takes a second; Typer answers those that come later.
        raise SystemExit(INTERRUPTED) from None
    app()


if __name__ == "__main__":
    main()
