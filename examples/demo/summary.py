"""What the demo prints at its end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from examples.demo import settings
from examples.demo.history import History
from examples.demo.tasks import TASK_NAMES
from rollstream.consumers import AuditReport
from rollstream.sampler import Evaluation


def duckdb_line(root: Path) -> str:
    """A command to paste: the newest policies' mean published reward, from the files alone."""
    query = (
        "SELECT environment, policy_version, count(*) AS rollouts, round(avg(reward), 3) AS reward "
        "FROM rows WHERE reward IS NOT NULL "
        "GROUP BY environment, policy_version ORDER BY min(created_ts) DESC LIMIT 12"
    )
    # Through the manifests: a killed sealer may leave a file that no event names.
    opened = f"from rollstream.store import open_dataset; rows = open_dataset('{root}')"
    return f'{sys.executable} -c "import duckdb; {opened}; print(duckdb.sql(\\"{query}\\"))"'


def _evaluated(evaluations: Sequence[Evaluation]) -> Table:
    """What the policies earned on problems that were never trained on, as they were published."""
    table = Table(title="Problems never trained on (split eval)", title_justify="left")
    table.add_column("environment")
    for heading in ("step", "rollouts", "reward", "passed"):
        table.add_column(heading, justify="right")
    for one in sorted(evaluations, key=lambda one: (one.environment, one.weight_step)):
        total = one.total
        reward = "-" if total.reward_mean is None else f"{total.reward_mean:.2f}"
        passed = "-" if total.pass_rate is None else f"{total.pass_rate:.0%}"
        figures = (one.weight_step, total.trajectories, reward, passed)
        table.add_row(one.environment, *map(str, figures))
    return table


def print_summary(
    console: Console,
    history: History,
    evaluations: Sequence[Evaluation],
    report: AuditReport,
    killed: Sequence[str],
    folder: Path,
) -> bool:
    """Prints it; whether the run was a success."""
    table = Table(title="What the policy learned", title_justify="left")
    for heading in ("environment", "reward at first", "reward at the end", "goal"):
        table.add_column(heading, justify="left" if heading == "environment" else "right")
    learned = True
    for name in TASK_NAMES:
        last = history.recent_reward(name)
        learned &= last >= settings.REWARD_FLOOR
        table.add_row(
            name, f"{history.first_reward(name):.2f}", f"{last:.2f}", f"{settings.REWARD_FLOOR}"
        )
    console.print(table)
    console.print(_evaluated(evaluations))
    seconds = history.steps[-1].elapsed_s
    rollouts = sum(seen.rollouts for seen in history.steps)
    lag = sum(seen.lag_mean for seen in history.steps) / len(history.steps)
    console.print(
        f"{len(history.steps)} optimizer steps on {rollouts:,} rollouts in {seconds:.0f} s "
        f"({rollouts / seconds:,.0f} rollouts/s trained); mean policy lag {lag:.1f} steps"
    )
    for line in killed:
        console.print(f"killed with -9: {line}")
    console.print(
        "audit: [green]holds[/green]" if report.holds else "audit: [red]DOES NOT HOLD[/red]"
    )
    for problem in report.problems:
        console.print(f"  {problem}", markup=False)
    console.print(f"learning curve: {folder / 'learning_curve.png'}", highlight=False)
    console.print(f"page of the run: {folder / 'page.html'}", highlight=False)
    console.print("\nWhat to look at next (the files open in any Parquet reader):")
    console.print(duckdb_line(folder / "data"), soft_wrap=True, highlight=False, markup=False)
    return learned and report.holds
