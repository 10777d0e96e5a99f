"""The demo's command line: ``python -m examples.demo``, from the root of the clone."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from rollstream.schemas.errors import RollstreamError

FOLDER = Path("runs/demo")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo.

    Returns:
        The exit code: 0 when the policy learned every task and the audit holds, otherwise 1. An
        error of Rollstream's and a missing package are one line on stderr.
    """
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument(
        "--folder",
        type=Path,
        default=FOLDER,
        help=f"for logs, files and pictures; emptied first, if a demo wrote it (default: {FOLDER})",
    )
    parser.add_argument(
        "--chaos",
        action="store_true",
        help="kill a sealer, the sampler, an env replica and the verifier with -9 meanwhile",
    )
    chosen = parser.parse_args(arguments)
    try:
        # By name, since a missing package is to be an answer and no traceback.
        run = importlib.import_module("examples.demo.run")
        return 0 if run.run_demo(chosen.folder, chaos=chosen.chaos) else 1
    except ModuleNotFoundError as error:
        sys.stderr.write(f"demo: needs {error.name}; run `make install` in the clone\n")
    except RollstreamError as error:
        sys.stderr.write(f"demo: {error}\n")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
