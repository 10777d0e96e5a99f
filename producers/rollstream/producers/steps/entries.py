"""Entries of steps, from what a writer of steps is given. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from rollstream.producers.admission.log import AdmissionLog
from rollstream.producers.engine.outbox import Outbox, Outgoing
from rollstream.producers.rollouts.fields import checked, checked_uid
from rollstream.producers.rollouts.membership import reason_of
from rollstream.producers.rollouts.validate import (
    Common,
    GroupAddress,
    common_of,
    group_address,
    segment,
)
from rollstream.producers.steps.policies import KnownPolicies, is_of_tokens
from rollstream.producers.steps.segments import Step, at_index, checked_step
from rollstream.producers.steps.submitted import Submitted
from rollstream.runtime.clock import Clock
from rollstream.schemas.errors import InvalidRollout, RollstreamError
from rollstream.schemas.ids import step_rollout_uid
from rollstream.schemas.ingest.entry import PLAIN, SHARED, Entry, EntryKind
from rollstream.schemas.order import PolicyRef
from rollstream.schemas.rules import INT_MAX, whole_number

_RARE = ("metadata", "loss_mask", "token_arrays")
# What a step leaves out of these is known from elsewhere, or not yet.
_RESOLVED = ("group_size", "policy_version", "weight_step", "policy_epoch", "lineage")
_shared_of = itemgetter(*(index for index, name in enumerate(SHARED) if name not in _RESOLVED))
_policy_of = attrgetter("policy_version", "policy_epoch", "lineage", "weight_step")
_INDEX = PLAIN.index("segment_idx")  # Behind it is ``is_last_segment``.
_plain_of = itemgetter(*(index for index, name in enumerate(PLAIN) if name != "created_ts"))


class Submission(NamedTuple):
    """What a call submits.

    Attributes:
        outgoing: its entries.
        remember: keeps what was submitted in mind. It is called once the entries are queued.
    """

    outgoing: Sequence[Outgoing]
    remember: Callable[[], None]


@dataclass(eq=False)
class StepEntries:
    """Makes entries of steps, and knows which prompts are open, and what was submitted. No I/O.
    The topic of each environment is known to exist."""

    _outbox: Outbox
    _max_open_prompts: int
    _clock: Clock
    _submitted: dict[str, Submitted] = field(default_factory=dict)  # By environment.
    # What did not reach the log, or perhaps did not, since the last call; any thread adds.
    _lost: deque[Outgoing] = field(default_factory=deque)

    def steps(
        self, steps: Iterable[Step], environment: str, log: AdmissionLog | None
    ) -> Submission:
        """These steps, in their order. Without ``log`` their policies are not known until
        ``resolve``."""
        if isinstance(steps, Step) or not isinstance(steps, Iterable):
            raise InvalidRollout("steps", steps, "give a sequence of Steps")
        submitted = self._submitted_to(environment)
        draft = submitted.draft(self._clock.monotonic_s())
        stamped = self._outbox.stamped(GroupAddress(environment, "", "", 0, "train"))
        make_common = partial(_common, KnownPolicies.of(log), stamped, self._clock.now_us())
        known_common = lru_cache(typed=True)(make_common)  # Many steps of a call have the same.
        outgoing = []
        for index, one in enumerate(steps):
            if not isinstance(one, Step):
                raise InvalidRollout(f"steps[{index}]", one, "give a Step")
            try:
                step = checked_step(one)
                size = draft.size_of(step)
                said = _policy_of(step)
                try:
                    common = known_common(size, *said)
                except TypeError:  # Each token has a weight_step, or a type is refused.
                    common = make_common(size, *said)
                entry = self._entry(step, common)
                draft.take(step, entry.rollout_uid, _content(step, entry))
                if log is None:
                    entry.said = said
            except InvalidRollout as wrong:
                raise at_index(wrong, index) from None
            outgoing.append(entry)
        return Submission(outgoing, partial(submitted.add, draft))

    def resolve(
        self, outgoing: Iterable[Outgoing], log: AdmissionLog
    ) -> dict[Outgoing, RollstreamError]:
        """Gives these entries the policies that trainers announced; those that have none, and
        why."""
        policies, wrong = KnownPolicies.of(log), dict[Outgoing, RollstreamError]()
        for one in outgoing:
            if one.said is None:
                continue
            try:
                one.entry = _with_policy(one.entry, *policies.sampled_by(*one.said))
            except InvalidRollout as error:
                wrong[one] = error
        return wrong

    def end(
        self, environment: str, trajectory_uid: str, prompt_uid: str, steps: int | None
    ) -> Submission:
        """The end of a trajectory."""
        uid, prompt = self._named(environment, trajectory_uid, prompt_uid)
        count = 0 if steps is None else whole_number("steps", steps)
        if steps is not None and count not in range(1, INT_MAX + 1):
            remedy = f"give 1 to {INT_MAX}, or None where each step is in the log by now"
            raise InvalidRollout("steps", count, remedy)
        address = GroupAddress(environment, prompt, prompt, 0, "train")
        end = self._outbox.ended(address, uid, count)
        self._submitted_to(environment).check_end(end, count)
        return self._ends(environment, end, count)

    def failure(
        self,
        environment: str,
        trajectory_uid: str,
        prompt_uid: str,
        reason: str | BaseException,
        n_rollouts: int | None,
        example_id: str,
    ) -> Submission:
        """The end of a trajectory that failed."""
        uid, prompt = self._named(environment, trajectory_uid, prompt_uid)
        submitted, rollout_uid = self._submitted_to(environment), step_rollout_uid(prompt, uid)
        submitted.check_failure(rollout_uid, uid)
        example = example_id or submitted.example_of(prompt) or prompt
        address = group_address(environment, example, prompt, n_rollouts or 0, "train")
        said = reason_of(reason) if isinstance(reason, BaseException) else reason
        failed = self._outbox.failed(address, checked("reason", said), 1, rollout_uid)
        failed.trajectory_uid = uid
        return self._ends(environment, failed, 0)

    def lose(self, outgoing: Iterable[Outgoing]) -> None:
        """These did not reach the log, or perhaps did not: others may come in their place, from the
        next call on."""
        self._lost.extend(outgoing)

    def _entry(self, step: Step, common: Common) -> Outgoing:
        """The step's entry."""
        prompt, name = step.prompt_uid, step.trajectory_uid
        common = common._replace(example_id=step.example_id or prompt, group_uid=prompt)
        rare = {field: value for field in _RARE if (value := getattr(step, field)) is not None}
        if rare:
            common = common._replace(whole={**common.whole, **rare}, rare=rare)
        uid = step_rollout_uid(prompt, name)
        own = (uid, step.prompt_ids, step.response_ids, step.logprobs, step.reward)
        environment, entry, bytes_ = segment(common, own, self._outbox.new_uid)
        plain = (*entry.plain[:_INDEX], step.step_index, step.is_last, *entry.plain[_INDEX + 2 :])
        kind = EntryKind.STEP_TO_SCORE if step.awaits_score else EntryKind.STEP
        entry = Entry(entry.shared, plain, {**entry.extras, "trajectory_uid": name}, kind)
        outgoing = self._outbox.rollout((environment, entry, bytes_ + len(name.encode())))
        outgoing.trajectory_uid = name
        return outgoing

    def _named(self, environment: str, trajectory_uid: str, prompt_uid: str) -> tuple[str, str]:
        """The uid and the prompt of a trajectory."""
        uid = checked_uid("trajectory_uid", trajectory_uid)
        prompt = prompt_uid or self._submitted_to(environment).prompt_of(uid)
        return uid, checked_uid("prompt_uid", prompt)

    def _ends(self, environment: str, end: Outgoing, count: int) -> Submission:
        now_s = self._clock.monotonic_s()
        return Submission([end], partial(self._submitted_to(environment).end, end, count, now_s))

    def _submitted_to(self, environment: str) -> Submitted:
        """What was submitted, but for what was lost since."""
        while self._lost:
            lost = self._lost.popleft()
            found = self._submitted.get(self._outbox.environment_of(lost.topic))
            if found is not None:
                found.forget(lost)
        found = self._submitted.get(environment)
        if found is None:
            found = self._submitted[environment] = Submitted(self._max_open_prompts)
        return found


def _common(
    policies: KnownPolicies,
    stamped: Mapping[str, Any],
    created_ts: int,
    size: int,
    version: Any,
    policy_epoch: Any,
    lineage: Any,
    weight_step: Any,
) -> Common:
    """What all steps of these values have in common, whatever their prompt is."""
    name, policy = policies.sampled_by(version, policy_epoch, lineage, weight_step)
    given = {
        "group_size": size,
        "policy_version": name,
        "weight_step": weight_step if is_of_tokens(weight_step) else policy.step,
        "policy_epoch": policy.epoch,
        "lineage": policy.lineage,
    }
    return common_of(given, stamped, created_ts)


def _with_policy(entry: Entry | None, version: str, policy: PolicyRef) -> Entry:
    """The step's entry with this policy in the place of one that was not known."""
    assert entry is not None, "it has not left"
    given: dict[str, Any] = {
        "policy_version": version,
        "policy_epoch": policy.epoch,
        "lineage": policy.lineage,
    }
    if "weight_steps" not in entry.extras:  # Else each token has its own.
        given["weight_step"] = policy.step
    shared = dict(zip(SHARED, entry.shared, strict=True))
    return entry._replace(shared=tuple((shared | given).values()))


def _content(step: Step, outgoing: Outgoing) -> int:
    """Of a step as it was given, that has not left: equal for equal ones, whenever they come, in
    this process."""
    entry = outgoing.entry
    assert entry is not None, "it has not left"
    arrays = sorted(entry.extras.get("token_arrays", {}).items())
    *policy, weight_step = _policy_of(step)
    given = (*_plain_of(entry.plain), *policy, str(weight_step), *arrays)
    return hash((entry.kind, _shared_of(entry.shared), *given))
