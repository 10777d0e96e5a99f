"""Measures how rollouts reach a trainer's batches, with each system.

``python -m benchmarks.end_to_end`` measures every scenario with the systems that can be compared in
it, all with the same rollouts. The rounds of the systems are interleaved, since machines are noisy;
figures are medians of rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from benchmarks import report
from benchmarks.one_round import Round, run_round
from benchmarks.scenarios import SCENARIOS
from benchmarks.systems.every import NAMES, system_named
from benchmarks.systems.interface import System

WARM_UP_S = 8.0  # A new broker's JVM compiles code for some seconds.
ROUNDS = 3


def main() -> None:
    arguments = _arguments()
    systems = _present(arguments.system)
    measured: dict[tuple[str, str], list[Round]] = {}
    for name in arguments.scenario:
        scenario = SCENARIOS[name]
        if arguments.measure_s is not None:
            scenario = replace(scenario, measure_s=arguments.measure_s)
        for number in range(arguments.rounds):
            for system in systems:
                if system.name not in scenario.systems:
                    continue
                one = run_round(system, scenario, warm_up_s=arguments.warm_up_s)
                measured.setdefault((system.name, name), []).append(one)
                print(
                    f"{name}, round {number + 1} of {arguments.rounds}, "
                    f"{system.name}: {one.rollouts_per_s:,.0f} rollouts/s",
                    flush=True,
                )
    found = report.rows(measured)
    print()
    print(report.table(found))
    print(report.admission(measured))
    print(f"\nwritten to {report.write(found)}")


def _present(names: Sequence[str]) -> list[System]:
    present = []
    for name in names:
        system = system_named(name)
        reason = system.missing()
        if reason is None:
            present.append(system)
        else:
            print(f"{system.name} is left out: {reason}")
    return present


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--system", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--warm-up-s", type=float, default=WARM_UP_S)
    parser.add_argument("--measure-s", type=float, help="instead of each scenario's own")
    parser.add_argument(
        "--quick", action="store_true", help="one short round of each: too short for figures"
    )
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.warm_up_s, arguments.measure_s = 1, 1.5, 3.0
    return arguments


if __name__ == "__main__":
    main()
