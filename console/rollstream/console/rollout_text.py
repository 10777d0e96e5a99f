"""A rollout as text, and as an object for programs. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.text import Text

from rollstream.console.showing import path_of
from rollstream.console.tokens import Decode
from rollstream.sampler.history import Became, FoundRollout
from rollstream.schemas.events import ServedScore
from rollstream.schemas.records import RolloutRecord
from rollstream.streams.tracing import GroupOrigin

SHOWN_CHARS_MAX = 2_000  # Of one text, half of them from its end.
# What would move a terminal's cursor, colour it or turn its lines round, and what is no character.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_MEANING = {
    "served": "in a batch that is not final",
    "left_out": "its group was served without it, since it was too old",
    "in_batch": "in a batch; its file does not say what became of that",
    "in_no_batch": "in no batch that has a file",
    "waiting": "waits to be served",
    "eval": "never served for training (split eval)",
}


def rollout_view(found: FoundRollout, decode: Decode | None, *, full: bool) -> RenderableType:
    """The rollout for people: where it is from, what became of it, and its texts.

    Args:
        decode: makes its tokens text; None: their ids are shown.
        full: whether texts are shown whole, however long they are.
    """
    parts: list[RenderableType] = list(_head(found))
    several = len(found.segments) > 1
    for segment in found.segments:
        if several:
            parts.append(_line(f"segment {segment.segment_idx}", style="bold"))
            parts += _of_segment(segment)
        parts += _texts(segment, decode, full=full)
    return Group(*parts)


def rollout_object(found: FoundRollout, decode: Decode | None) -> dict[str, Any]:
    """The rollout as JSON, whole; ``prompt_text`` and ``output_text`` where tokens can be read."""
    origin, first = found.origin, found.segments[0]
    return {
        "rollout_uid": found.rollout_uid,
        "trajectory_uid": first.trajectory_uid,
        "environment": origin.environment,
        "example_id": first.example_id,
        "split": first.split,
        "reward": found.reward,
        "published_reward": found.published_reward,
        "score": None if found.score is None else _score(found.score),
        "token_count": found.token_count,
        "stop_reason": found.segments[-1].stop_reason,
        "group_id": origin.group_id,
        "group_uid": first.group_uid,
        "sealed_ts": origin.sealed_ts,
        "failures": origin.failures,
        "path": origin.path,
        "log_generation": origin.generation,
        "log_partition": origin.partition,
        "flush_offset": origin.flush_offset,
        "became": [asdict(one) for one in found.became],
        "segments": [
            {
                **_fields(segment),
                "row": row.row,
                "log_offset": row.offset,
                "log_entry": row.entry,
                **({} if decode is None else _decoded(segment, decode)),
            }
            for segment, row in zip(found.segments, origin.segments, strict=True)
        ],
    }


def rollout_head(found: FoundRollout) -> list[str]:
    """Where it is from and what became of it, a line each, as ``rollout_view`` begins."""
    return [line.plain for line in _head(found) if isinstance(line, Text)]


def failures_told(origin: GroupOrigin) -> Iterator[str]:
    """Lines on members of the group that never came."""
    for reason, members in origin.failures.items():
        yield f"of its members {members:,} failed: {one_line(reason) or 'for another reason'}"


def masked_ranges(loss_mask: NDArray[np.bool_] | None) -> list[tuple[int, int]]:
    """The output tokens that are not trained on, as first one and the one after the last."""
    if loss_mask is None or loss_mask.all():
        return []
    return [(start, stop) for start, stop, kept in _runs(loss_mask) if not kept]


def printable(text: str) -> str:
    """The text with what a terminal would obey, or cannot show, spelled out."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str, most: int | None = None) -> str:
    """``printable`` in one line, of at most so many characters."""
    line = printable(text).replace("\n", "\\n").replace("\t", " ")
    return line if most is None or len(line) <= most else f"{line[: most - 1]}…"


# Where it is from, and what became of it.


def _head(found: FoundRollout) -> Iterator[RenderableType]:
    origin, first, last = found.origin, found.segments[0], found.segments[-1]
    head = f"{found.rollout_uid} of {origin.environment}, example {first.example_id}"
    yield _line(head, style="bold green")
    if first.trajectory_uid:
        yield _line(f"trajectory {first.trajectory_uid} of prompt {first.group_uid}")
    earned = _earned(found.reward)
    if found.score is not None:
        earned += f" by {found.score.scorer}, version {found.score.version}"
    named = ", ".join(f"{name} {value:g}" for name, value in _components(found).items())
    one = len(found.segments) == 1
    prompt = f"{first.prompt_count:,} prompt tokens" if one else f"{len(found.segments)} turns"
    yield _line(
        f"reward {earned}{named and f' ({named})'}, stop reason {last.stop_reason}, {prompt}, "
        f"{found.token_count:,} output tokens, split {first.split}"
    )
    if found.score is not None:
        flags = ", ".join(found.score.flags)
        yield _line(
            f"scored {utc_time(found.score.logged_ts)}{flags and f', flags {flags}'}; "
            f"published: reward {_earned(found.published_reward)}"
        )
    if one:
        yield from _of_segment(first)
    yield _line(f"group {origin.group_id}, sealed {utc_time(origin.sealed_ts)}, in the file")
    yield path_of(origin.path)
    for told in failures_told(origin):
        yield _line(told)
    for row in origin.segments:
        yield _line(
            f"row {row.row}, from {origin.environment}[{origin.partition}] offset {row.offset}, "
            f"entry {row.entry}"
        )
    for became in found.became:
        yield _line(_became(became), style="yellow")


def _of_segment(segment: RolloutRecord) -> Iterator[Text]:
    lineage = f", lineage {segment.lineage}" if segment.lineage else ""
    yield _line(
        f"policy {segment.policy_version} (weight step {segment.weight_step}, epoch "
        f"{segment.policy_epoch}{lineage}), replica {segment.replica_id}, worker "
        f"{segment.worker_id}, at {utc_time(segment.created_ts)}"
    )
    if segment.metadata:
        yield _line(f"metadata {json.dumps(segment.metadata, ensure_ascii=False)}")


def _earned(reward: float | None) -> str:
    return "awaited" if reward is None else f"{reward:g}"


def _components(found: FoundRollout) -> Mapping[str, float]:
    """Of all segments together; the last one's by the score, where it has these."""
    sums: dict[str, float] = {}
    each = [dict(segment.rewards) for segment in found.segments]
    if found.score is not None:
        each[-1] |= found.score.rewards
    for rewards in each:
        for name, value in rewards.items():
            sums[name] = sums.get(name, 0.0) + value
    return sums


def _became(one: Became) -> str:
    state = _MEANING.get(one.state, one.state)
    acked = f", acked as {one.acked}" if one.acked not in (None, one.state) else ""
    detail = f": {one.detail}" if one.detail else ""
    if one.step is None:
        return f"{one.sampler}: {state}{detail}"
    kept = ", kept for it by the step before" if one.carried else ""
    where = f"step {one.step}, slot {one.slot} of {one.batch_id}{kept}"
    return f"{one.sampler}: {where}: {state}{acked}{detail}"


# Its texts.


def _texts(segment: RolloutRecord, decode: Decode | None, *, full: bool) -> Iterator[Text]:
    masked = sum(stop - start for start, stop in masked_ranges(segment.loss_mask))
    left_out = f", {masked:,} of them masked" if masked else ""
    if segment.messages:
        for message in segment.messages:
            yield from _section(*_message(message), full=full)
        if masked:
            yield _line(f"{segment.token_count:,} output tokens{left_out}")
        return
    prompt = Text(_spelled(segment.prompt_tokens, decode))
    yield from _section(f"prompt, {segment.prompt_count:,} tokens", prompt, full=full)
    output = f"output, {segment.token_count:,} tokens{left_out}"
    yield from _section(output, _output(segment, decode), full=full)


def _section(title: str, body: Text, *, full: bool) -> Iterator[Text]:
    yield _line(f"-- {title}", style="cyan")
    cut = len(body) - SHOWN_CHARS_MAX
    if not full and cut > 0:
        half = SHOWN_CHARS_MAX // 2
        left_out = f"\n[... {cut:,} characters more; --full shows them ...]\n"
        body = Text.assemble(body[:half], (left_out, "magenta"), body[-half:])
    yield body


def _message(message: Mapping[str, Any]) -> tuple[str, Text]:
    """Role and content; whatever else it has follows as JSON."""
    left = dict(message)
    role, content = left.pop("role", "message"), left.pop("content", "")
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    more = json.dumps(left, ensure_ascii=False) if left else ""
    return str(role), Text(printable("\n".join(filter(None, (text, more)))))


def _output(segment: RolloutRecord, decode: Decode | None) -> Text:
    """The output; what is not trained on stands in brackets."""
    tokens, mask = segment.output_tokens, segment.loss_mask
    if mask is None or mask.all():
        return Text(_spelled(tokens, decode))
    text = Text()
    for start, stop, kept in _runs(mask):
        part = _spelled(tokens[start:stop], decode)
        text.append(f"{' ' if text and decode is None else ''}")
        if kept:
            text.append(part)
        else:
            text.append(f"[masked {stop - start}: {part}]", style="dim")
    return text


def _spelled(tokens: NDArray[np.int32], decode: Decode | None) -> str:
    ids: list[int] = tokens.tolist()
    return " ".join(map(str, ids)) if decode is None else printable(decode(ids))


def _runs(mask: NDArray[np.bool_]) -> Iterator[tuple[int, int, bool]]:
    """Stretches of equal values: first token, the one after the last, the value."""
    edges = [0, *(np.flatnonzero(mask[1:] != mask[:-1]) + 1).tolist(), len(mask)]
    for start, stop in pairwise(edges):
        yield start, stop, bool(mask[start])


# As an object.


def _fields(segment: RolloutRecord) -> dict[str, Any]:
    names = (
        *("segment_idx", "policy_version", "weight_step", "policy_epoch", "lineage", "replica_id"),
        *("worker_id", "created_ts", "prompt_count", "token_count", "reward", "stop_reason"),
    )
    return {
        **{name: getattr(segment, name) for name in names},
        "rewards": dict(segment.rewards),
        "metadata": segment.metadata,
        "messages": list(segment.messages),
        "prompt_tokens": segment.prompt_tokens.tolist(),
        "output_tokens": segment.output_tokens.tolist(),
        "masked": masked_ranges(segment.loss_mask),
    }


def _score(score: ServedScore) -> dict[str, Any]:
    names = ("scorer", "version", "reward", "attempt", "logged_ts", "by_group")
    fields = {name: getattr(score, name) for name in names}
    return {**fields, "rewards": dict(score.rewards), "flags": list(score.flags)}


def _decoded(segment: RolloutRecord, decode: Decode) -> dict[str, str]:
    return {
        "prompt_text": decode(segment.prompt_tokens.tolist()),
        "output_text": decode(segment.output_tokens.tolist()),
    }


def _line(text: str, style: str = "") -> Text:
    return Text(one_line(text), style=style)


def utc_time(microseconds: int) -> str:
    """A log time in words."""
    return f"{datetime.fromtimestamp(microseconds / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC"
