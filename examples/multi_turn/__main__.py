"""An agent learns to cross a frozen lake: ``make multi-turn``, from the root of the clone."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rollstream.schemas.errors import RollstreamError

if TYPE_CHECKING:
    from examples.multi_turn.run import Result

FOLDER = Path("runs/multi_turn")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the example.

    Returns:
        The exit code: 0 when the policy learned and the audit holds, otherwise 1. An error of
        Rollstream's and a missing package are one line on stderr.
    """
    parser = argparse.ArgumentParser(prog="python -m examples.multi_turn", description=__doc__)
    parser.add_argument(
        "--folder",
        type=Path,
        default=FOLDER,
        help=f"for logs, weights and the picture; emptied first (default: {FOLDER})",
    )
    chosen = parser.parse_args(arguments)
    try:
        # By name, since a missing package is to be an answer and no traceback.
        run = importlib.import_module("examples.multi_turn.run")
        rich = importlib.import_module("rich.console")
        result: Result = run.run_multi_turn(chosen.folder, console=rich.Console())
        _print(result, chosen.folder)
        return 0 if result.learned and result.audited.holds else 1
    except ModuleNotFoundError as error:
        sys.stderr.write(f"multi-turn: needs {error.name}; run `make install` in the clone\n")
    except RollstreamError as error:
        sys.stderr.write(f"multi-turn: {error}\n")
    return 1


def _print(result: Result, folder: Path) -> None:
    steps = result.history.steps
    (environment,) = steps[0].rewards
    first, last = (
        of(environment) for of in (result.history.first_reward, result.history.recent_reward)
    )
    walks = sum(seen.rollouts for seen in steps)
    print(f"mean return {first:.2f} at first, {last:.2f} at the end", end="; ")
    print(f"the policy {'learned' if result.learned else 'DID NOT LEARN'}")
    print(f"{len(steps)} prompts, {walks} trajectories in {steps[-1].elapsed_s:.0f} s", end="; ")
    print(f"{result.dropped} more were finished while the pool was full, and dropped")
    print(f"audit: {'holds' if result.audited.holds else 'DOES NOT HOLD'}")
    print(f"learning curve: {folder / 'learning_curve.png'}")


if __name__ == "__main__":
    raise SystemExit(main())
