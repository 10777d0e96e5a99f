"""``python -m simulation``: seeds in every simulated world, on all cores, in processes.

``--broken`` runs the worlds with a defect instead, each until it is caught.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import count
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext

from rollstream.runtime.clock import SystemClock
from rollstream.runtime.deadline import Deadline
from simulation.worlds import (
    BROKEN,
    CAUGHT_WITHIN,
    EVERY,
    WORLDS,
    Seen,
    begin_process,
    first_caught,
    run_seed,
)

SEEDS = 300
SEEDS_A_PROCESS = 200  # Then a new process takes its place: what a seed leaves behind is bounded.
PROGRESS_EVERY_S = 30.0


@dataclass
class Total:
    """What all seeds came to."""

    seeds: set[int] = field(default_factory=set)
    faults: int = 0
    reached: Counter[str] = field(default_factory=Counter)
    violations: int = 0

    def add(self, seen: Seen) -> None:
        self.seeds.add(seen.seed)
        self.faults += seen.faults
        self.reached += seen.reached
        self.violations += bool(seen.violation)

    def line(self) -> str:
        reached = ", ".join(f"{n:,} {what}" for what, n in sorted(self.reached.items()))
        return (
            f"{len(self.seeds):,} seeds, {self.faults:,} faults; reached {reached}; "
            f"{self.violations} violations"
        )


def processes() -> ForkServerContext:
    """New ones have the worlds already: they are imported once, in a process that forks."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["simulation.worlds"])
    return context


def seen_of(
    worlds: Sequence[str], seeds: Iterator[int], deadline: Deadline | None
) -> Iterator[Seen]:
    """Runs each seed in each world, or one of so many as ``EVERY`` says, as long as there are any,
    or until the deadline."""
    every = EVERY if len(worlds) > 1 else {}
    todo = ((world, seed) for seed in seeds for world in worlds if seed % every.get(world, 1) == 0)
    cores = os.cpu_count() or 1
    with ProcessPoolExecutor(
        cores,
        mp_context=processes(),
        initializer=begin_process,
        max_tasks_per_child=SEEDS_A_PROCESS,
    ) as pool:
        running: set[Future[Seen]] = set()
        while True:
            while len(running) < 2 * cores and not (deadline and deadline.passed()):
                following = next(todo, None)
                if following is None:
                    break
                running.add(pool.submit(run_seed, *following))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def simulate(worlds: Sequence[str], seeds: Iterator[int], minutes: float | None) -> Total:
    """Prints each violation, with the command that repeats just it."""
    total, clock = Total(), SystemClock()
    progress_s = clock.monotonic_s()
    deadline = None if minutes is None else Deadline(60 * minutes)
    for seen in seen_of(worlds, seeds, deadline):
        total.add(seen)
        if seen.violation:
            print(f"{seen.world}, seed {seen.seed}: {seen.violation.strip()}")
            print(
                f"  again: make simulate SEEDS=1 FIRST={seen.seed} WORLD={seen.world}", flush=True
            )
        if clock.monotonic_s() - progress_s >= PROGRESS_EVERY_S:
            progress_s = clock.monotonic_s()
            print(f"… {total.line()}", flush=True)
    print(total.line())
    return total


def find_broken(names: Sequence[str], first: int) -> bool:
    """Runs each world with a defect until it is caught; whether all were."""
    all_caught = True
    with ProcessPoolExecutor(
        os.cpu_count(), mp_context=processes(), initializer=begin_process
    ) as pool:
        caught = pool.map(first_caught, names, [first] * len(names))
        for name, seen in zip(names, caught, strict=True):
            all_caught &= seen is not None
            if seen is None:
                print(f"{name}: not caught within {CAUGHT_WITHIN} seeds", flush=True)
            else:
                what = seen.violation.strip().splitlines()[-1]
                within = f"within {seen.seed - first + 1} seeds, by seed {seen.seed}"
                print(f"{name}: caught {within}: {what}", flush=True)
    return all_caught


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--minutes", type=float, help="instead of a number of seeds")
    parser.add_argument("--world", choices=[*WORLDS, *BROKEN], help="that one alone")
    parser.add_argument("--broken", action="store_true")
    args = parser.parse_args()
    if args.broken:
        return not find_broken([args.world] if args.world else list(BROKEN), args.first)
    seeds = count(args.first) if args.minutes else iter(range(args.first, args.first + args.seeds))
    worlds = [args.world] if args.world else list(WORLDS)
    return bool(simulate(worlds, seeds, args.minutes).violations)


if __name__ == "__main__":
    sys.exit(main())
