"""Where the ``rollstream`` script starts. Imports nothing that an extra brings."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.util import find_spec

from rollstream.runtime.extras import how_to_install

NEEDS = ("typer", "rich", "pyarrow", "pydantic")


def main() -> None:
    """Runs the command line; without the ``console`` extra it says what to install, exit code 1."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"rollstream: the command line needs {', '.join(missing)}; "
            f"{how_to_install('console')}\n"
        )
        raise SystemExit(1)
    # Arrow's own pool gives memory back within moments; it is read when pyarrow is loaded.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    importlib.import_module("rollstream.console.app").build()()


if __name__ == "__main__":
    main()
