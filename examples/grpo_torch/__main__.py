"""A transformer learns with GRPO over Rollstream: ``make grpo``, from the root of the clone."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rollstream.schemas.errors import RollstreamError

if TYPE_CHECKING:
    from examples.grpo_torch.run import Result

FOLDER = Path("runs/grpo")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the example.

    Returns:
        The exit code: 0 when the policy learned, and a kill changed nothing; otherwise 1. An error
        of Rollstream's and a missing package are one line on stderr.
    """
    parser = argparse.ArgumentParser(prog="python -m examples.grpo_torch", description=__doc__)
    parser.add_argument(
        "--folder",
        type=Path,
        default=FOLDER,
        help=f"for logs, weights and the picture; emptied first (default: {FOLDER})",
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights and problems (default: 0)")
    parser.add_argument("--steps", type=int, help="optimizer steps, instead of the settings'")
    parser.add_argument(
        "--kill-rank-at",
        type=int,
        metavar="STEP",
        help="kill -9 of a rank in the middle of it; at the end the steps are trained once more "
        "without the kill, and batches and weights compared",
    )
    chosen = parser.parse_args(arguments)
    try:
        # By name, since a missing package is to be an answer and no traceback.
        settings = importlib.import_module("examples.grpo_torch.settings")
        run = importlib.import_module("examples.grpo_torch.run")
        rich = importlib.import_module("rich.console")
        steps = settings.STEPS if chosen.steps is None else chosen.steps
        result: Result = run.run_grpo(
            chosen.folder,
            seed=chosen.seed,
            steps=steps,
            kill_at=chosen.kill_rank_at,
            console=rich.Console(),
        )
        _print(result, chosen.folder)
        return 0 if result.learned and result.same else 1
    except ModuleNotFoundError as error:
        sys.stderr.write(f"grpo: needs {error.name}; run `make grpo` in the clone\n")
    except RollstreamError as error:
        sys.stderr.write(f"grpo: {error}\n")
    return 1


def _print(result: Result, folder: Path) -> None:
    print("mean reward on the held-out problems, by optimizer step:")
    print("  " + "  ".join(f"{e.weight_step}: {e.total.reward_mean:.2f}" for e in result.held_out))
    fill = sum(one.fill for one in result.trained) / len(result.trained)
    lag = sum(one.lag for one in result.trained) / len(result.trained)
    print(f"{len(result.trained)} steps; mean policy lag {lag:.1f}; packs filled to {fill:.0%}")
    for one in result.compared:
        digests = "one digest" if one.digests else "DIGESTS DIFFER"
        weights = "one set of weights" if one.weights else "WEIGHTS DIFFER"
        print(f"step {one.step:>3}: {one.times} trainer epochs and a replay, {digests}, {weights}")
    print(f"the policy {'learned' if result.learned else 'DID NOT LEARN'}; ", end="")
    print(f"learning curve: {folder / 'learning_curve.png'}")


if __name__ == "__main__":
    raise SystemExit(main())
