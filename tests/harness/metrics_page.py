"""The page of all metrics, made of the catalogue.

``python -m harness.metrics_page`` writes it; a test compares the page with what this makes.
"""

from __future__ import annotations

from harness.source_tree import ROOT
from rollstream.runtime.metrics.catalogue import CATALOGUE
from rollstream.runtime.metrics.metric import Metric

PAGE = ROOT / "docs" / "reference" / "metrics.md"
HEAD = """# Metrics

Every metric that a process may show. [Metrics and alerts](../operating/metrics.md) says how to show
them. Counters count since the process began. A *histogram* of seconds has `_bucket`, `_sum` and
`_count`. Each process also has `process_open_fds`, `process_max_fds`, `process_cpu_seconds_total`
and `process_resident_memory_bytes`.
"""
PARTS = {
    "sealer": "Sealers",
    "sampler": "Samplers",
    "gateway": "Gateways",
    "producer": "Producers",
    "": "Every process",
    "monitor": "`rollstream monitor`",
}
_EVERY_PROCESS = ("alive", "ready", "scrape", "store", "broker")


def page() -> str:
    """The page as it should be."""
    return "\n".join([HEAD, *(_section(part, title) for part, title in PARTS.items())])


def _part(metric: Metric) -> str:
    first = metric.name.split("_")[1]
    if first in PARTS:
        return first
    return "" if first in _EVERY_PROCESS else "monitor"


def _section(part: str, title: str) -> str:
    lines = [f"## {title}", "", "| metric | kind | labels | what |", "|---|---|---|---|"]
    lines += [
        f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} | "
        f"{one.help} |"
        for one in CATALOGUE
        if _part(one) == part
    ]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
