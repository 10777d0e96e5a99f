"""Steps whose writers name a trajectory by its own uid alone, as older versions do, beside those
that name it by the digest of its prompt's and its own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from harness.assembling import NO_BOUND, Drive
from harness.examples import examples
from harness.rollouts import make_dispatched, make_ended, make_step, step_uids
from rollstream.consumers.assembling.decisions import values_of
from rollstream.consumers.sealing.rows import FlushTarget, draft_flush
from rollstream.schemas.ids import PartitionAddress, step_rollout_uid
from rollstream.schemas.ingest.entry import Entry

TARGET = FlushTarget(PartitionAddress("math", 1, 0), 7, "nonce", "name", "none", "root")
FORMS = pytest.mark.parametrize("old", [True, False], ids=["old first", "new first"])


def step(
    trajectory: str, index: int = 0, prompt: str = "p", *, old: bool, size: int = 1, **fields: Any
) -> Entry:
    fields = {"segment_idx": index, "is_last_segment": False, "group_size": size, **fields}
    return make_step(prompt, trajectory, old=old, **fields)


def end(trajectory: str, prompt: str = "p", segments: int = 0, *, old: bool) -> Entry:
    named = step_uids(prompt, trajectory, old=old)
    return make_ended(named.pop("rollout_uid"), segments, example_id=prompt, **named)


def uid(trajectory: str, prompt: str = "p", *, old: bool) -> str:
    return step_uids(prompt, trajectory, old=old)["rollout_uid"]


def reasons(drive: Drive) -> list[str]:
    return [reason.value for _, reason in sorted(drive.settled_offsets().items())]


@pytest.mark.proves("B3")
@FORMS
def test_a_trajectory_ends_under_the_uid_with_which_it_began(*, old: bool) -> None:
    drive = Drive(min_group_size=1)
    drive.add(step("t", 0, old=old))
    drive.add(step("t", 1, old=not old))
    drive.add(step("t", 2, old=old))
    drive.add(step("t", 3, old=not old, is_last_segment=True))
    (group,) = drive.groups()
    assert values_of(group.rows, "segment_idx") == [0, 1, 2, 3]
    assert set(values_of(group.rows, "rollout_uid")) == {uid("t", old=old)}
    assert set(values_of(group.rows, "trajectory_uid")) == {"" if old else "t"}
    assert reasons(drive) == []


@FORMS
@pytest.mark.parametrize("commits", [True, False])
def test_a_step_that_comes_again_in_a_dispatched_group_counts_once(
    *, old: bool, commits: bool
) -> None:
    drive = Drive(min_group_size=1)
    drive.add(make_dispatched(group_uid="p", example_id="p", group_size=1))
    drive.add(step("t", 0, old=old, is_last_segment=True))
    if commits:
        drive.commit()
    drive.add(step("t", 0, old=not old, is_last_segment=True))
    (group,) = drive.groups()
    assert values_of(group.rows, "rollout_uid") == [uid("t", old=old)]
    assert "duplicate" in reasons(drive)


@FORMS
def test_a_trajectory_that_outlives_its_group_goes_on_under_its_other_name(*, old: bool) -> None:
    drive = Drive(min_group_size=1, seal_timeout_s=5.0)
    drive.add(make_dispatched(group_uid="p", example_id="p", group_size=2))
    drive.add(step("u", 0, old=True, size=2, is_last_segment=True))
    drive.add(step("t", 0, old=old, size=2))
    drive.wait(10)
    drive.add(step("t", 1, old=not old, size=2, is_last_segment=True))
    drive.wait(10_000)
    _, group = drive.groups()
    assert values_of(group.rows, "rollout_uid") == [uid("t", old=old)] * 2


@FORMS
def test_the_rows_and_the_event_have_the_uid_with_which_it_began(*, old: bool) -> None:
    drive = Drive(min_group_size=1)
    # The second step in a record with others, and without a digest.
    drive.add(step("t", 0, old=old))
    drive.add(
        step("u", 0, "q", old=True),
        step("t", 1, old=not old, is_last_segment=True),
        step("v", 0, "r", old=False),
    )
    plan = drive.plan(NO_BOUND, NO_BOUND)
    assert plan is not None
    flushed = draft_flush(plan, TARGET, lambda path, data: None)
    assert flushed.segments.uids == (uid("t", old=old),) * 2


@pytest.mark.proves("B2", "B3")
@pytest.mark.parametrize("segments", [0, 2])
@FORMS
def test_an_end_under_the_other_name_ends_it(segments: int, *, old: bool) -> None:
    drive = Drive(min_group_size=1)
    drive.add(step("t", 0, old=old))
    drive.add(step("t", 1, old=old))
    drive.add(end("t", segments=segments, old=not old))
    assert drive.members() == [(uid("t", old=old),) * 2]
    assert reasons(drive) == ["ended"]


@pytest.mark.proves("A13")
@FORMS
def test_a_step_that_comes_again_under_the_other_name_is_a_duplicate(*, old: bool) -> None:
    drive = Drive(min_group_size=1)
    for form in (old, not old):
        drive.add(step("t", 0, old=form, size=2))
    drive.add(step("t", 1, old=not old, size=2, is_last_segment=True))
    for form in (old, not old):  # It has ended, and its prompt goes on.
        drive.add(step("t", 1, old=form, size=2, is_last_segment=True))
    drive.add(step("u", 0, old=not old, size=2, is_last_segment=True))
    assert drive.members() == [(uid("t", old=old),) * 2 + (uid("u", old=not old),)]
    for form in (old, not old):  # It is sealed.
        drive.add(step("t", 1, old=form, size=2, is_last_segment=True))
    assert reasons(drive) == ["duplicate"] * 5


@FORMS
def test_a_failed_trajectory_stays_failed_under_the_other_name(*, old: bool) -> None:
    drive = Drive(min_group_size=1)
    drive.add(step("u", 0, old=old, size=2, is_last_segment=True))
    drive.add(step("t", 0, old=old, size=2, example_id="other"))
    assert drive.members() == [(uid("u", old=old),)]
    drive = Drive(min_group_size=1, accept_policy_versions=("step-0",))
    drive.add(step("t", 0, old=old, size=2, policy_version="bad"))
    drive.add(step("t", 1, old=not old, size=2, is_last_segment=True))
    assert drive.members() == [], "one failed, not two"
    drive.add(step("u", 0, old=not old, size=2, is_last_segment=True))
    assert drive.members() == [(uid("u", old=not old),)]
    (group,) = drive.groups()
    assert group.failed_members == 1


@pytest.mark.proves("B1")
@pytest.mark.parametrize("sealed", [False, True])
def test_a_uid_in_two_prompts_is_two_rollouts_also_where_one_has_the_old_name(
    *, sealed: bool
) -> None:
    drive = Drive(min_group_size=1)
    drive.add(step("t", 0, "p", old=True, is_last_segment=sealed))
    if sealed:
        assert drive.members() == [("t",)]
    drive.add(step("t", 0, "q", old=False))
    drive.add(step("t", 1, "q", old=False, is_last_segment=True))
    if not sealed:
        drive.add(end("t", "p", 1, old=False))
    found = {
        group.key.group_uid: set(values_of(group.rows, "rollout_uid")) for group in drive.groups()
    }
    assert found == {"p": {"t"}, "q": {step_rollout_uid("q", "t")}}
    assert "duplicate" not in reasons(drive)


def test_the_digest_itself_names_the_trajectory_too() -> None:
    drive = Drive(min_group_size=1)
    digest = step_rollout_uid("p", "t")
    drive.add(step("t", 0, old=False))
    drive.add(step(digest, 1, old=False))
    drive.add(end(digest, old=False))
    assert drive.members() == [(digest, digest)]


SUBMITTED = st.lists(
    st.tuples(
        st.sampled_from("pq"),
        st.sampled_from("tu"),
        st.integers(0, 2),
        st.booleans(),
        st.sampled_from(["step", "step", "last", "end"]),
    ),
    max_size=24,
)


def played(
    submitted: list[tuple[str, str, int, bool, str]], mixed: bool, restart: int, pending: int
) -> Any:
    """Which steps were sealed in which prompt, and why the others ended, with a sealer that was
    killed before an entry and began again; ``mixed``: in the forms that are drawn. No prompt
    ends without a seal: steps of one that did may begin it again under the other names."""
    drive = Drive(min_group_size=1, seal_timeout_s=5.0, pending_bytes=pending)
    log = []
    for prompt, trajectory, index, old, kind in submitted:
        own, form = f"{prompt}{trajectory}", old and mixed
        if kind == "end":
            log.append(end(own, prompt, old=form))
        else:
            last = kind == "last"
            log.append(step(own, index, prompt, old=form, size=2, is_last_segment=last))
    for offset, entry in enumerate(log):
        if offset == restart:
            drive.commit()
            drive = resumed(drive, log[:offset])
        drive.add(entry)
        drive.wait(1.0)
    drive.wait(100.0)
    sealed = [
        (group.key.group_uid, group.reason, values_of(group.rows, "segment_idx"))
        for group in drive.groups()
    ]
    unsealed = [one for one in drive.decisions if one.group is None]
    assume(not any(s.reason == "broken_chain" for one in unsealed for s in one.settled))
    return sealed, reasons_of_repeats(drive, [(*one[:3], one[4] == "end") for one in submitted])


def reasons_of_repeats(drive: Drive, entries: list[tuple[str, str, int, bool]]) -> list[str]:
    """Why entries ended, in their order. A repeat of a step that was settled as beyond the size,
    in a prompt that is not sealed, is one too under its other name: its sealer remembers no such
    trajectory, nor does its successor. It counts for nothing in either case."""
    settled = {offset: reason.value for offset, reason in drive.settled_offsets().items()}
    found, first = [], dict[tuple[str, str, int, bool], int]()
    for offset, entry in enumerate(entries):
        began, reason = first.setdefault(entry, offset), settled.get(offset)
        if began < offset and settled.get(began) == "beyond_size" and not entry[3]:
            assert reason in ("duplicate", "beyond_size"), (offset, reason)
            reason = "repeat beyond the size"
        if reason is not None:
            found.append(reason)
    return found


def resumed(before: Drive, read: list[Entry]) -> Drive:
    """A new assembler over the same log, which reads again what is not settled."""
    watermark = before.assembler.decided.watermark
    after = Drive(min_group_size=1, seal_timeout_s=5.0, watermark=watermark)
    after.segments_seen |= before.segments_seen
    after.decisions = before.decisions
    settled = set(before.settled())
    for decision in before.decisions:
        group = decision.group
        settled |= {(row[2], row[3]) for row in (group.rows if group else decision.incomplete)}
    for offset in range(watermark, len(read)):
        after.now_us = offset * 1_000_000
        after.add(read[offset], settled=[0] if (offset, 0) in settled else [])
    after.now_us = before.now_us
    after.assembler.tick(after.now_us)
    return after


@settings(max_examples=examples(400))
@given(SUBMITTED, st.integers(0, 24), st.sampled_from([0, 4_000]))
def test_whichever_names_steps_have_the_same_is_sealed_and_settled(
    submitted: list[tuple[str, str, int, bool, str]], restart: int, pending: int
) -> None:
    assert played(submitted, True, restart, pending) == played(submitted, False, restart, pending)
