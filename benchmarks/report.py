"""Reports medians of rounds, as a table and a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from statistics import median, quantiles

import numpy as np

from benchmarks.one_round import Round
from benchmarks.scenarios import SCENARIOS
from benchmarks.workload import Workload

RESULTS = Path(__file__).parent / "results" / "end_to_end.json"
BASELINE = "raw"


@dataclass(frozen=True)
class Row:
    """One system in one scenario; medians over its rounds.

    Attributes:
        mb_per_s: tokens, log-probs and named arrays, in 10^6 bytes a second.
        ratio_to_raw: rollouts/s over raw's, a ratio of medians; None where raw was not measured,
            and where the scenario sets the pace.
        cpu_us: processor time a rollout, all processes together.
        p50_ms, p99_ms: from ``publish`` to the trainer, of all rounds together; None where rollouts
            do not go one at a time.
        peak_rss_mib: by label; the largest of the processes that share it.
        cpu_us_per_rollout: by label; the sum of the processes that share it.
        rounds: rollouts/s of each round.
    """

    system: str
    scenario: str
    rollouts_per_s: float
    mb_per_s: float
    ratio_to_raw: float | None
    cpu_us: float
    p50_ms: float | None
    p99_ms: float | None
    peak_rss_mib: dict[str, float]
    cpu_us_per_rollout: dict[str, float]
    rounds: list[float]


def rows(measured: Mapping[tuple[str, str], Sequence[Round]]) -> list[Row]:
    """One for each (system, scenario), by scenario, systems in the order of measuring."""
    speeds = {key: median(r.rollouts_per_s for r in rounds) for key, rounds in measured.items()}
    found = []
    for (system, name), rounds in measured.items():
        scenario = SCENARIOS[name]
        speed, raw = speeds[system, name], speeds.get((BASELINE, name))
        paced = scenario.per_s is not None or scenario.one_at_a_time
        p50_ms, p99_ms = _percentiles(list(chain.from_iterable(r.latencies_ms for r in rounds)))
        row = Row(
            system=system,
            scenario=name,
            rollouts_per_s=round(speed, 1),
            mb_per_s=round(speed * Workload(scenario).bytes_per_rollout / 1e6, 1),
            ratio_to_raw=None if raw is None or paced else round(speed / raw, 3),
            cpu_us=round(median(map(_cpu_us, rounds)), 1),
            p50_ms=p50_ms,
            p99_ms=p99_ms,
            peak_rss_mib=_medians([r.peak_rss_mib for r in rounds]),
            cpu_us_per_rollout=_medians([r.cpu_us_per_rollout for r in rounds]),
            rounds=[round(r.rollouts_per_s, 1) for r in rounds],
        )
        found.append(row)
    return sorted(found, key=lambda row: list(SCENARIOS).index(row.scenario))


def write(found: Sequence[Row]) -> Path:
    """Writes the rows, in place of those of the last run, and returns the file."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps([asdict(row) for row in found], indent=2) + "\n")
    return RESULTS


def table(found: Sequence[Row]) -> str:
    """Speeds and latencies, then memory and processor time, one line a system and scenario."""
    head = f"{'':>11}  {'system':<11} {'rollouts/s':>10} {'MB/s':>7} {'of raw':>7} {'CPU µs':>8}"
    lines = [f"{head} {'p50 ms':>7} {'p99 ms':>7}  rounds"]
    for row in found:
        rounds = " ".join(f"{speed:,.0f}" for speed in row.rounds)
        lines.append(
            f"{row.scenario:>11}  {row.system:<11} {row.rollouts_per_s:>10,.0f} "
            f"{row.mb_per_s:>7,.0f} {_or_blank(row.ratio_to_raw, 2)} {row.cpu_us:>8,.0f} "
            f"{_or_blank(row.p50_ms, 1)} {_or_blank(row.p99_ms, 1)}  {rounds}"
        )
    lines += [
        "",
        f"{'':>11}  {'system':<11} peak resident MiB | CPU µs a rollout",
    ]
    for row in found:
        memory = ", ".join(f"{label} {mib:,.0f}" for label, mib in row.peak_rss_mib.items())
        cpu = ", ".join(f"{label} {us:.1f}" for label, us in row.cpu_us_per_rollout.items())
        lines.append(f"{row.scenario:>11}  {row.system:<11} {memory} | {cpu}")
    return "\n".join(lines)


def admission(measured: Mapping[tuple[str, str], Sequence[Round]]) -> str:
    """With admission beside without: the ratios of pairs of rounds; empty where there are none."""
    lines = [""]
    for scenario in dict.fromkeys(name for _, name in measured):
        on, off = (measured.get((name, scenario), []) for name in ("admitted", "rollstream"))
        pairs = list(zip(on, off, strict=False))
        if pairs:
            speed = [one.rollouts_per_s / other.rollouts_per_s for one, other in pairs]
            cpu = [_cpu_us(one) / _cpu_us(other) for one, other in pairs]
            lines.append(
                f"{scenario:>11}  admission on over off: rollouts/s {_spread(speed)}, "
                f"CPU a rollout {_spread(cpu)}, of {len(pairs)} pairs"
            )
    return "\n".join(lines)


def _cpu_us(one: Round) -> float:
    return sum(one.cpu_us_per_rollout.values())


def _spread(ratios: Sequence[float]) -> str:
    """The median, and the quartiles."""
    low, middle, high = np.percentile(ratios, (25, 50, 75))
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def _or_blank(value: float | None, digits: int) -> str:
    return f"{'' if value is None else f'{value:.{digits}f}':>7}"


def _percentiles(values: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """The 50th and the 99th."""
    if len(values) < 2:
        return None, None
    cuts = quantiles(values, n=100)
    return round(cuts[49], 2), round(cuts[98], 2)


def _medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    labels = dict.fromkeys(label for one in rounds for label in one)
    return {
        label: round(median(one[label] for one in rounds if label in one), 1) for label in labels
    }
