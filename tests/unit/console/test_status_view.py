"""The tables of status and audit at 80 columns."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

from rich.console import Console, RenderableType

from harness.shown_figures import PARTITION, SAMPLER, SAMPLERS
from rollstream.console.commands.audit import audit_view
from rollstream.console.status_view import status_view
from rollstream.consumers.audit import AuditReport, PartitionAudit
from rollstream.status import (
    AdmissionFigures,
    Alarm,
    DeadLetterFigures,
    Figures,
    Verdict,
)


def shown(view: RenderableType) -> str:
    """The text that a pipe gets, for which rich assumes 80 columns."""
    out = StringIO()
    Console(file=out, width=80).print(view)
    return out.getvalue()


def status(owner: str = "sealer-2", actor: str = "node-7:41234") -> str:
    figures = Figures(
        partitions=(replace(PARTITION, owner=owner),), samplers=(replace(SAMPLER, owner=actor),)
    )
    return shown(status_view(figures, (), SAMPLERS))


def test_80_columns_hold_a_line_a_row_with_every_figure_whole() -> None:
    lines = status().splitlines()
    heading, row = next((lines[n], lines[n + 1]) for n in range(12) if "partition" in lines[n])
    assert heading.split() == [
        "partition",
        "backlog",
        "entries",
        "groups",
        "groups/s",
        "flushed",
        "sealer",
    ]
    assert row.startswith("math[12]")
    assert "1,234.5" in row
    assert row.rstrip().endswith("sealer-2")
    heading, row = next((lines[n], lines[n + 1]) for n in range(12) if "batches" in lines[n])
    assert heading.split()[-1] == "owner"
    assert row.startswith("trainer-a")
    assert row.rstrip().endswith("node-7:41234")


def test_owner_too_long_for_80_columns_is_folded_not_cut() -> None:
    text = status("rollstream-sealer-5d8f7c9b6-x2k4q", "rollstream-trainer-0:41234 (actor)")
    assert "…" not in text
    assert "x2k4q" in text.replace(" ", "").replace("\n", "")


def test_groups_that_are_not_ready_are_named_below_the_table() -> None:
    text = " ".join(status().split())
    assert "trainer-a: 10 wait: a member has no reward and no score" in text
    assert "trainer-a: 6 eval groups, never served for training" in text
    assert "6 wait" not in text
    assert "trainer-a: 7 groups from before the dedupe horizon" in text


def test_a_sampler_without_a_bound_on_lag_is_a_remark_with_what_it_gives_up() -> None:
    remark = "samplers.trainer-a.max_policy_lag is -1, no limit: groups of any age"
    assert remark in " ".join(status().split())
    bounded = {"trainer-a": replace(SAMPLERS["trainer-a"], max_policy_lag=0)}
    assert "no limit" not in shown(status_view(Figures(samplers=(SAMPLER,)), (), bounded))


def test_samplers_without_a_bound_on_lag_share_one_remark() -> None:
    names = ("trainer-a", "trainer-b", "trainer-c")
    rows = tuple(replace(SAMPLER, name=name) for name in names)
    choosing = dict.fromkeys(names, SAMPLERS["trainer-a"])
    text = " ".join(shown(status_view(Figures(samplers=rows), (), choosing)).split())
    assert text.count("no limit: groups of any age") == 1
    assert "trainer-b.max_policy_lag is -1 and samplers.trainer-c.max_policy_lag is -1" in text


def test_a_backlog_is_told_from_what_is_open() -> None:
    said = "backlog: records read again at a restart; entries: what is open in them"
    assert said in status().splitlines()
    done = replace(PARTITION, watermark=PARTITION.ingest_end)
    assert "restart" not in shown(status_view(Figures(partitions=(done,)), (), {}))


def test_a_sampler_that_was_never_started_is_a_remark() -> None:
    text = " ".join(status(actor="").split())
    assert "trainer-a: was never started, and 65,536 groups are ready for it" in text
    assert "nothing is stuck" in text
    assert "never started" not in status()


def test_producers_that_wait_are_told_with_the_setting_that_limits_them() -> None:
    by = {"trainer-a": "samples_per_insert", "trainer-b": "target_policy_lag"}
    waiting = AdmissionFigures(environment="math", producers=9, waiting=4, told_by=by)

    def text(admission: AdmissionFigures) -> str:
        figures = Figures(admission=(admission,))
        return " ".join(shown(status_view(figures, (), {})).split())

    assert (
        "math: 4 of 9 producers wait for admission, which grants no more: "
        "trainer-a by samples_per_insert and trainer-b by target_policy_lag"
    ) in text(waiting)
    assert "wait for admission" not in text(replace(waiting, waiting=0))
    assert "wait for admission" not in text(replace(waiting, told_by={}))  # That is a verdict.


def test_the_next_step_is_the_one_that_the_trainer_asks_for() -> None:
    assert "12,001" in status()


def test_publishing_is_summed_by_environment_with_its_rate() -> None:
    rows = tuple(replace(PARTITION, partition=n, touched_entries=0, touched=0) for n in (0, 1))
    text = shown(status_view(Figures(partitions=rows, sealers={"math": 3}), (), {}))
    heading, row = text.splitlines()[1:3]
    assert heading.split() == ["environment", "records", "entries/s", "newest", "lost", "sealers"]
    assert row.split() == ["math", "24,691,356", "2,469.0", "59.9", "s", "0", "3"]


def test_many_partitions_are_summed_and_only_those_without_a_sealer_are_rows() -> None:
    rows = [replace(PARTITION, partition=n, held=n != 40) for n in range(64)]
    text = shown(status_view(Figures(partitions=tuple(rows)), (), {}))
    lines = [line.strip() for line in text.splitlines()]
    sealing = lines[lines.index("Sealing") + 2 :]
    assert [line.split()[0] for line in sealing[:2]] == ["math[40]", "math"]
    assert "sealer-2, gone" in sealing[0]
    assert "4,992" in sealing[1]


def test_dead_letters_and_the_end_of_a_run_are_told() -> None:
    letters = DeadLetterFigures(
        kept=24,
        newest_age_s=3.0,
        newest_reason="unknown_schema: fingerprint '9c49'",
        newest_from="rollouts.tools.1[1] at 338",
    )
    figures = Figures(samplers=(replace(SAMPLER, over=True),), dead_letters=letters)
    text = " ".join(shown(status_view(figures, (), SAMPLERS)).split())
    assert "dead letters: 24, the newest 3.0 s ago: rollouts.tools.1[1] at 338: unknown_sch" in text
    assert "trainer-a: the run was finished 2 min ago" in text
    assert text.endswith("the run is over")
    older = Figures(dead_letters=DeadLetterFigures(kept=24))
    assert "dead letters: 24; see" in shown(status_view(older, (), SAMPLERS))


def test_every_stuck_stage_is_a_line() -> None:
    stuck = (
        Verdict("sealers", "one", Alarm.NO_SEALER),
        Verdict("trainer", "two", Alarm.NOT_ACKED),
    )
    lines = shown(status_view(Figures(), stuck, {})).splitlines()
    assert lines == ["stuck: sealers – one", "stuck: trainer – two"]


def test_entries_of_the_backlog_say_how_well_they_are_known() -> None:
    known = replace(PARTITION, touched=PARTITION.ingest_end, touched_entries=12_345_611)
    mean = replace(PARTITION, touched_entries=3 * PARTITION.touched)
    unknown = replace(PARTITION, watermark=0, settled=0, touched=0, touched_entries=0)
    for row, entries in ((known, " 11 "), (mean, " ~24,691,434 "), (unknown, " ? ")):
        text = shown(status_view(Figures(partitions=(row,)), (), {}))
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
    )
    text = shown(audit_view(AuditReport(partitions=(row,), problems=())))
    assert "published" not in text
    assert "entries + imported = pending + sealed + settled" in text
    assert "2,304" in text
    assert "256 dispatched" in text
