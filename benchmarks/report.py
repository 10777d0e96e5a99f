"""Reports medians of rounds, as a table and a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.one_round import Round
from benchmarks.workload import LENGTHS, Workload

RESULTS = Path(__file__).parent / "results" / "end_to_end.json"
BASELINE = "raw"


@dataclass(frozen=True)
class Row:
    """One system at one length; medians over its rounds.

    Attributes:
        mb_per_s: token and log-prob arrays, in 10^6 bytes a second.
        ratio_to_raw: ratio of the medians; None where raw was not measured.
        peak_rss_mib: by label; the largest of the processes that share it.
        cpu_us_per_rollout: by label; the sum of the processes that share it.
        rounds: rollouts/s of each round.
    """

    system: str
    length: str
    rollouts_per_s: float
    mb_per_s: float
    ratio_to_raw: float | None
    peak_rss_mib: dict[str, float]
    cpu_us_per_rollout: dict[str, float]
    rounds: list[float]


def rows(measured: Mapping[tuple[str, str], Sequence[Round]]) -> list[Row]:
    """One for each (system, length), by length, systems in the order of measuring."""
    speeds = {key: median(r.rollouts_per_s for r in rounds) for key, rounds in measured.items()}
    found = []
    for (system, length), rounds in measured.items():
        speed, raw = speeds[system, length], speeds.get((BASELINE, length))
        row = Row(
            system=system,
            length=length,
            rollouts_per_s=round(speed, 1),
            mb_per_s=round(speed * Workload(length).bytes_per_rollout / 1e6, 1),
            ratio_to_raw=None if raw is None else round(speed / raw, 3),
            peak_rss_mib=_medians([r.peak_rss_mib for r in rounds]),
            cpu_us_per_rollout=_medians([r.cpu_us_per_rollout for r in rounds]),
            rounds=[round(r.rollouts_per_s, 1) for r in rounds],
        )
        found.append(row)
    return sorted(found, key=lambda row: LENGTHS.index(row.length))


def write(found: Sequence[Row]) -> Path:
    """Writes the rows, in place of those of the last run, and returns the file."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps([asdict(row) for row in found], indent=2) + "\n")
    return RESULTS


def table(found: Sequence[Row]) -> str:
    """Speeds, then memory and processor time, one line a system and length."""
    head = f"{'length':>10}  {'system':<11} {'rollouts/s':>10} {'MB/s':>7} {'of raw':>7}  rounds"
    lines = [head]
    for row in found:
        ratio = "" if row.ratio_to_raw is None else f"{row.ratio_to_raw:.2f}"
        rounds = " ".join(f"{speed:,.0f}" for speed in row.rounds)
        lines.append(
            f"{row.length:>10}  {row.system:<11} {row.rollouts_per_s:>10,.0f} "
            f"{row.mb_per_s:>7,.0f} {ratio:>7}  {rounds}"
        )
    lines += [
        "",
        f"{'length':>10}  {'system':<11} peak resident MiB | CPU µs a rollout",
    ]
    for row in found:
        memory = ", ".join(f"{label} {mib:,.0f}" for label, mib in row.peak_rss_mib.items())
        cpu = ", ".join(f"{label} {us:.1f}" for label, us in row.cpu_us_per_rollout.items())
        lines.append(f"{row.length:>10}  {row.system:<11} {memory} | {cpu}")
    return "\n".join(lines)


def _medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    labels = dict.fromkeys(label for one in rounds for label in one)
    return {
        label: round(median(one[label] for one in rounds if label in one), 1) for label in labels
    }
