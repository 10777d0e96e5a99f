"""Entries of steps, from what a writer of steps is given. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rollstream.producers.engine.outbox import Outbox, Outgoing
from rollstream.producers.errors import Contradiction
from rollstream.producers.rollouts.fields import checked, checked_uid
from rollstream.producers.rollouts.membership import reason_of
from rollstream.producers.rollouts.validate import GroupAddress, group_address
from rollstream.producers.steps.policies import KnownPolicies
from rollstream.producers.steps.segments import (
    Step,
    at_index,
    checked_steps,
    segment_arguments,
)
from rollstream.producers.steps.submitted import Submitted, contents_of
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.ids import step_rollout_uid
from rollstream.schemas.ingest.entry import EntryKind
from rollstream.schemas.rules import whole_number


class Submission(NamedTuple):
    """Checked steps of one environment, their groups' sizes, their entries, and what tells their
    contents apart."""

    environment: str
    steps: Sequence[Step]
    sizes: Sequence[int]
    outgoing: Sequence[Outgoing]
    contents: Sequence[int]


class StepEntries:
    """Makes entries of steps, and knows which prompts are open, and what was submitted. No I/O."""

    def __init__(self, outbox: Outbox, max_open_prompts: int) -> None:
        self._outbox = outbox
        self._max_open_prompts = max_open_prompts
        # By environment; kept once steps were queued, and so its topic exists.
        self._submitted: dict[str, Submitted] = {}
        # What did not reach the log, or perhaps did not, since the last call; any thread adds.
        self._lost: deque[Outgoing] = deque()

    def make(
        self, steps: Iterable[Step], environment: str, policies: KnownPolicies, now_s: float
    ) -> Submission:
        self._forget_lost()
        given = checked_steps(steps)
        found = given.copy()
        for index, step in enumerate(given):
            try:
                found[index] = policies.resolved(step)
            except InvalidRollout as wrong:
                raise at_index(wrong, index) from None
        known = self._known(environment)
        sizes = known.sizes(found, now_s)
        outgoing = []
        for index, (step, size) in enumerate(zip(found, sizes, strict=True)):
            try:
                arguments = segment_arguments(step, environment, size)
                of, entry, bytes_ = self._outbox.segment(arguments)
                kind = EntryKind.STEP_TO_SCORE if step.awaits_score else EntryKind.STEP
                entry = entry._replace(kind=kind)
                outgoing.append(self._outbox.step((of, entry, bytes_), step.trajectory_uid))
            except InvalidRollout as wrong:
                raise at_index(wrong, index) from None
        contents = contents_of(given, outgoing)
        uids = [one.rollout_uid for one in outgoing]
        known.check(found, uids, contents)
        return Submission(environment, found, sizes, outgoing, contents)

    def add(self, submission: Submission, now_s: float) -> None:
        environment, steps, sizes, outgoing, contents = submission
        uids = [one.rollout_uid for one in outgoing]
        submitted = self._submitted.setdefault(environment, self._known(environment))
        submitted.add(steps, uids, sizes, contents, now_s)

    def lose(self, outgoing: Iterable[Outgoing]) -> None:
        """These did not reach the log, or perhaps did not: others may come in their place, from the
        next call on."""
        self._lost.extend(outgoing)

    def lose_unanswered(self, outgoing: Sequence[Outgoing]) -> None:
        """Those of these that are not known to be in the log."""
        self.lose(one for one in outgoing if not one.answered)

    def _forget_lost(self) -> None:
        while self._lost:
            lost = self._lost.popleft()
            submitted = self._submitted.get(self._outbox.environment_of(lost.topic))
            if submitted is not None:
                submitted.forget(lost)

    def make_end(
        self, environment: str, trajectory_uid: str, prompt_uid: str, steps: int | None
    ) -> Outgoing:
        uid, prompt, is_rollout = self._named(environment, trajectory_uid, prompt_uid)
        count = 0 if steps is None else whole_number("steps", steps)
        if steps is not None and count < 1:
            remedy = "give 1 or more, or None where each step is in the log by now"
            raise InvalidRollout("steps", count, remedy)
        address = GroupAddress(environment, prompt, prompt, 0, "train")
        end = self._outbox.ended(address, uid, count, is_rollout=is_rollout)
        self._known(environment).check_end(end, count)
        return end

    def make_failure(
        self,
        environment: str,
        trajectory_uid: str,
        prompt_uid: str,
        reason: str | BaseException,
        n_rollouts: int | None,
        example_id: str,
    ) -> Outgoing:
        uid, prompt, is_rollout = self._named(environment, trajectory_uid, prompt_uid)
        submitted = self._known(environment)
        rollout_uid = uid if is_rollout else step_rollout_uid(prompt, uid)
        submitted.check_failure(rollout_uid, uid)
        example = example_id or submitted.example_of(prompt) or prompt
        address = group_address(environment, example, prompt, n_rollouts or 0, "train")
        said = reason_of(reason) if isinstance(reason, BaseException) else reason
        failed = self._outbox.failed(address, checked("reason", said), 1, rollout_uid)
        failed.trajectory_uid = uid
        return failed

    def _named(
        self, environment: str, trajectory_uid: str, prompt_uid: str
    ) -> tuple[str, str, bool]:
        """The uid and the prompt of a trajectory, and whether the uid is its rollout's."""
        checked("environment", environment)
        self._forget_lost()
        uid = checked_uid("trajectory_uid", trajectory_uid)
        submitted = self._known(environment)
        known = submitted.prompt_of_rollout(uid)
        prompt = checked_uid("prompt_uid", prompt_uid or known or submitted.prompt_of(uid))
        if known not in ("", prompt):
            before = f"rollout {uid} belongs to prompt {known!r}"
            raise Contradiction("prompt_uid", prompt, "name that one", before)
        return uid, prompt, bool(known)

    def end(self, environment: str, ended: Outgoing, steps: int | None, now_s: float) -> None:
        uids = ended.rollout_uid, ended.trajectory_uid, ended.group_uid
        submitted = self._submitted.setdefault(environment, self._known(environment))
        submitted.end(*uids, steps or 0, now_s)

    def _known(self, environment: str) -> Submitted:
        known = self._submitted.get(environment)
        return Submitted(self._max_open_prompts) if known is None else known
