"""The tables of status and audit at 80 columns."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

from rich.console import Console, RenderableType

from rollstream.console.commands.audit import audit_view
from rollstream.console.commands.status import status_view
from rollstream.consumers.audit import AuditReport, PartitionAudit
from rollstream.runtime.config.sections import SamplerConfig
from rollstream.streams.status import Figures, PartitionFigures, SamplerFigures, Verdict

PARTITION = PartitionFigures(
    environment="math",
    partition=12,
    kept_from=0,
    ingest_end=12_345_678,
    published_age_s=59.9,
    owner="sealer-2",
    watermark=12_345_600,
    settled=12_345_600,
    touched=12_345_600,
    touched_entries=12_345_600,
    groups=771_604,
    segments=12_345_000,
    flush_age_s=3_599.0,
)
SAMPLER = SamplerFigures(
    name="trainer-a",
    environments=("math",),
    owner="node-7:41234",
    ready=65_536,
    waiting={"reward": 10, "eval": 6},
    older=7,
    batches=12_345,
    acked=12_300,
    open_batches=64,
    next_step=12_345,
    policy_epoch=1,
    policy_step=12_345,
    decision_age_s=91.0,
    dropped_since={},
    waiting_since={},
)
SAMPLERS = {"trainer-a": SamplerConfig(environments=("math",))}


def shown(view: RenderableType) -> str:
    """The text that a pipe gets, for which rich assumes 80 columns."""
    out = StringIO()
    Console(file=out, width=80).print(view)
    return out.getvalue()


def status(owner: str = "sealer-2", actor: str = "node-7:41234") -> str:
    figures = Figures(
        partitions=(replace(PARTITION, owner=owner),), samplers=(replace(SAMPLER, owner=actor),)
    )
    return shown(status_view(figures, Verdict("", "nothing is stuck"), SAMPLERS))


def test_80_columns_hold_a_line_a_row_with_every_figure_whole() -> None:
    lines = status().splitlines()
    heading, row = next((lines[n], lines[n + 1]) for n in range(9) if "partition" in lines[n])
    assert heading.split() == [
        "partition",
        "records",
        "newest",
        "backlog",
        "entries",
        "groups",
        "flushed",
        "owner",
    ]
    assert row.startswith("math[12]")
    assert "12,345,678" in row
    assert row.rstrip().endswith("sealer-2")
    heading, row = next((lines[n], lines[n + 1]) for n in range(9) if "batches" in lines[n])
    assert heading.split()[-1] == "owner"
    assert row.startswith("trainer-a")
    assert row.rstrip().endswith("node-7:41234")


def test_owner_too_long_for_80_columns_is_folded_not_cut() -> None:
    text = status("rollstream-sealer-5d8f7c9b6-x2k4q", "rollstream-trainer-0:41234 (actor)")
    assert "…" not in text
    assert "x2k4q" in text.replace(" ", "").replace("\n", "")


def test_groups_that_are_not_ready_are_named_below_the_table() -> None:
    text = " ".join(status().split())
    assert "trainer-a: 10 wait: a member has no reward, and none can be given later" in text
    assert "trainer-a: 6 eval groups, never served for training" in text
    assert "6 wait" not in text
    assert "trainer-a: 7 groups from before the dedupe horizon" in text


def test_entries_of_the_backlog_say_how_well_they_are_known() -> None:
    known = replace(PARTITION, touched=PARTITION.ingest_end, touched_entries=12_345_611)
    mean = replace(PARTITION, touched_entries=3 * PARTITION.touched)
    unknown = replace(PARTITION, watermark=0, settled=0, touched=0, touched_entries=0)
    for row, entries in ((known, " 11 "), (mean, " ~24,691,434 "), (unknown, " ? ")):
        text = shown(status_view(Figures(partitions=(row,)), Verdict("", ""), {}))
        assert entries in text


def test_audit_counts_control_events_among_the_entries() -> None:
    row = PartitionAudit(
        environment="math",
        partition=0,
        published=2_304,
        pending=0,
        sealed=2_048,
        settled={"dispatched": 256},
        groups=256,
        files=4,
        flushes=4,
        watermark=2_304,
        manifests_missing=0,
    )
    text = shown(audit_view(AuditReport(partitions=(row,), problems=())))
    assert "published" not in text
    assert "entries = pending + sealed + settled" in text
    assert "2,304" in text
    assert "256 dispatched" in text
