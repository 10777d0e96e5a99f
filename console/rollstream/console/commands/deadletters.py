"""``rollstream deadletters list``, ``show`` and ``retry``"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from rollstream.console.options import (
    CONFIG_FILE,
    TIMEOUT_S,
    AnswerTimeoutOption,
    AsJson,
    ConfigOption,
)
from rollstream.console.services import services_of
from rollstream.console.showing import indented
from rollstream.console.showing import show as show_view
from rollstream.consumers.dead_letters import retry_letters
from rollstream.consumers.dead_letters.retrying import RetryState
from rollstream.runtime.config.load import load_config
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.ingest.record import decode_record
from rollstream.schemas.reasons import LetterReason
from rollstream.streams.dead_letters import StoredLetter, read_letters
from rollstream.streams.topics.layout import Layout

ReasonOption = Annotated[
    LetterReason | None, typer.Option("--reason", help="Those with this reason.", metavar="REASON")
]


def list_letters(
    context: typer.Context,
    config: ConfigOption = CONFIG_FILE,
    timeout_s: AnswerTimeoutOption = TIMEOUT_S,
    reason: ReasonOption = None,
    as_json: AsJson = False,
) -> None:
    """Lists the entries that sealers could not read, oldest first, with the reason."""
    services, settings = services_of(context), load_config(config)
    rows: list[dict[str, Any]] = []
    view: list[RenderableType] = []
    others: set[str] = set()
    with services.connected(settings, timeout_s) as broker:
        deadline = Deadline(timeout_s, services.clock)
        for stored in read_letters(broker, Layout.of(settings.kafka), deadline):
            letter = stored.letter
            if reason not in (None, letter.reason):
                others.add(letter.reason)
                continue
            rows.append(_shown(stored))
            view += _listed(stored)
    if others and not rows:
        known = ", ".join(sorted(others))
        typer.echo(f"no dead letter has the reason {reason}; those kept have: {known}", err=True)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    elif rows:
        show_view(Group(*view))
    elif others:
        return
    else:
        typer.echo("no dead letters")


def _listed(stored: StoredLetter) -> list[RenderableType]:
    """Where the entry stood, and below it why it could not be read."""
    letter = stored.letter
    size = 0 if letter.value is None else len(letter.value)
    where = f"{letter.topic}[{letter.partition}] offset {letter.offset:,}, entry {letter.entry}"
    retried = ", retried" if stored.retried else ""
    return [
        Text(f"letter {stored.number}: {where}, {size:,} bytes{retried}"),
        indented(f"{letter.reason}: {letter.detail}"),
    ]


def show(
    context: typer.Context,
    number: Annotated[int, typer.Argument(help="As in the list.", metavar="LETTER")],
    config: ConfigOption = CONFIG_FILE,
    timeout_s: AnswerTimeoutOption = TIMEOUT_S,
) -> None:
    """Shows one letter as JSON, and what this version reads of its bytes."""
    services, settings = services_of(context), load_config(config)
    with services.connected(settings, timeout_s) as broker:
        deadline = Deadline(timeout_s, services.clock)
        for stored in read_letters(broker, Layout.of(settings.kafka), deadline):
            if stored.number == number:
                found = {**_shown(stored), "entries": _entries(stored)}
                typer.echo(json.dumps(found, indent=2))
                return
    typer.echo(f"there is no letter {number}; `rollstream deadletters list` names them", err=True)
    raise typer.Exit(1)


def retry(
    context: typer.Context,
    numbers: Annotated[
        list[int] | None, typer.Argument(help="As in the list.", metavar="LETTER")
    ] = None,
    config: ConfigOption = CONFIG_FILE,
    timeout_s: AnswerTimeoutOption = TIMEOUT_S,
    reason: ReasonOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Every letter.")] = False,
    as_json: AsJson = False,
) -> None:
    """Publishes entries of dead letters again, if they can be read now and were not sealed since.

    An entry counts once, however often you run this. Exit code 1 if a letter, or a part of it, is
    refused.

    Upgrade the sealers first. Entries that they cannot read come back as another letter.
    """
    if not (numbers or reason or everything):
        raise typer.BadParameter("name letters, or give --reason or --all")
    services, settings = services_of(context), load_config(config)

    def wanted(stored: StoredLetter) -> bool:
        named = everything or stored.number in (numbers or ())
        return named or (reason is not None and stored.letter.reason == reason)

    outcomes = []
    with services.connected(settings, timeout_s) as broker:
        deadline = Deadline(timeout_s, services.clock)
        for outcome in retry_letters(settings, broker, wanted, deadline):
            outcomes.append(outcome)
            if not as_json:
                detail = f": {outcome.detail}" if outcome.detail else ""
                typer.echo(f"letter {outcome.number}: {outcome.state}{detail}")
    states = Counter(outcome.state for outcome in outcomes)
    missing = sorted({*(numbers or ())} - {outcome.number for outcome in outcomes})
    if missing:
        named = ", ".join(map(str, missing))
        typer.echo(
            f"there are no letters {named}; `rollstream deadletters list` names them", err=True
        )
    if as_json:
        typer.echo(json.dumps([outcome._asdict() for outcome in outcomes], indent=2))
    elif outcomes or not missing:
        typer.echo(
            f"{sum(outcome.entries for outcome in outcomes)} entries published of "
            f"{states[RetryState.PUBLISHED] + states[RetryState.PARTLY]} letters; "
            f"{states[RetryState.BEFORE]} letters published before, "
            f"{states[RetryState.SETTLED]} were sealed, {states[RetryState.REFUSED]} refused"
        )
    if missing or states[RetryState.REFUSED] or states[RetryState.PARTLY]:
        raise typer.Exit(1)


def _shown(stored: StoredLetter) -> dict[str, Any]:
    letter = asdict(stored.letter)
    value = letter.pop("value")
    return {
        "letter": stored.number,
        "retried": stored.retried,
        **letter,
        "bytes": None if value is None else len(value),
    }


def _entries(stored: StoredLetter) -> Any:
    """What is read of the letter's record, or why it cannot be."""
    if stored.letter.value is None:
        return "its bytes were too many for a letter"
    try:
        record = decode_record(stored.letter.value)
    except UnreadableEvent as error:
        return f"cannot be read here: {error}"
    names = ("group_uid", "rollout_uid", "segment_idx", "example_id", "policy_version")
    return [
        {
            **{name: record.values(name)[entry] for name in names},
            "environment": record.environment,
            "worker_id": record.worker_id,
            "breaks": str(record.broken[entry]) if entry in record.broken else None,
        }
        for entry in range(record.count)
    ]
