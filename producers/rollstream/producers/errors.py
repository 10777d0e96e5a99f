"""Every error that a producer raises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from rollstream.schemas.errors import InvalidRollout, RollstreamError, WrongValue, shown
from rollstream.schemas.events import Scored
from rollstream.streams.errors import BrokerUnavailable

_SHOWN_MAX = 5
IF_NO_TOPIC = (
    "give the producer the namespace and the generation of [kafka] in the configuration, or run "
    "`rollstream topics create`"
)
"""What to do if a topic does not exist. Its name has the namespace and the generation."""


class ProducerError(RollstreamError):
    """A producer could not do what was asked."""


class InvalidSettings(WrongValue, ProducerError):
    """An argument is wrong. The message names it, its value and what to give instead.

    Attributes:
        field: the argument.
        value: the wrong value: a number, text or None as it was given, and of anything else the
            beginning of its ``repr``.
        finding: what is wrong with the value, for example ``is 0``.
        remedy: what to give instead.
    """


class ProducerClosed(ProducerError):
    """The producer was closed; make a new one."""

    def __init__(self, message: str = "this producer was closed; make a new one") -> None:
        super().__init__(message)


class ProducerDied(ProducerError):
    """The background thread or task of the producer ended with an error. Make a new producer."""

    @classmethod
    def of(cls, cause: BaseException) -> Self:
        """What runs behind the producer has ended with this."""
        died = cls(
            f"what sends in the background has ended with {cause!r}; close this producer, which "
            "names what did not arrive, and make a new one"
        )
        died.__cause__ = cause
        return died


class ForkedProducer(ProducerError):
    """The producer was made before this process was forked off; make one in each process."""


class SeveralEventLoops(ProducerError, RuntimeError):
    """The producer is in use in another event loop, which runs now. Nothing was queued; make a
    producer in each loop."""


class NoPolicy(ProducerError, TimeoutError):
    """No policy, or no newer one, came in time. The message says what was waited for, and why none
    may have come.
    """


class RunOver(NoPolicy):
    """The run of the trainer that published last is over, so no newer policy comes."""


class SeveralLineages(ProducerError, ValueError):
    """Two models are in training in one environment, and neither the call nor the producer names
    one.

    Attributes:
        lineages: the names of these models, sorted.
    """

    def __init__(self, environment: str, lineages: Sequence[str], named_by: str) -> None:
        each = [repr(one) if one else "'' (the default)" for one in lineages]
        super().__init__(
            f"environment {environment!r} has models of lineages {' and '.join(each)} in training; "
            f"name the one to sample with: {named_by}"
        )
        self.lineages = tuple(lineages)


class NotAdmitted(ProducerError, TimeoutError):
    """The samplers let this producer begin no more groups in time. Nothing was begun.

    Attributes:
        sampler: the one whose limit holds the producer.
        capacity: how many groups it had room for, from all producers together; 0: for none.
        away_s: seconds for which its limit has not been renewed, since it ended or cannot be
            reached; None: it is current.
        open_groups: the groups that this producer's own blocks hold open, in words.
    """

    def __init__(
        self,
        waited_for: str,
        timeout_s: float,
        *,
        sampler: str,
        capacity: int,
        away_s: float | None,
        open_groups: Sequence[str],
    ) -> None:
        message = f"not admitted within {timeout_s:g} s: waited {waited_for}"
        if open_groups:
            message += (
                f"; this producer's own blocks hold {len(open_groups)} ({_first(open_groups)}): "
                "where they wait for this one, end them first"
            )
        super().__init__(message)
        self.sampler = sampler
        self.capacity = capacity
        self.away_s = away_s
        self.open_groups = tuple(open_groups)


class TooManyGroups(WrongValue, ProducerError):
    """``admit(groups=N)`` asks for more groups than can ever be open at one time. Nothing was
    begun.

    Attributes:
        field: ``groups``.
        value: N, as ``groups``.
        finding: what is wrong with it.
        remedy: what to give instead.
        groups: N.
        most: the largest N that can be admitted.
        sampler: the one whose settings say so.
    """

    def __init__(self, environment: str, groups: int, most: int, sampler: str) -> None:
        remedy = f"ask for {most} or fewer, or raise groups_per_step or target_policy_lag of the "
        finding = f"is {groups}, and sampler {sampler} lets at most {most} groups of "
        finding += f"{environment!r} be open at one time"
        super().__init__("groups", groups, f"{remedy}sampler", finding)
        self.groups = groups
        self.most = most
        self.sampler = sampler


class Contradiction(InvalidRollout):
    """A step, or a trajectory's end, contradicts what this writer submitted before; nothing was
    queued. The message names field, value, what it contradicts and what to do."""

    def __init__(self, field: str, value: Any, remedy: str, before: str) -> None:
        super().__init__(field, value, remedy, f"is {shown(value)}, and {before}")


class RolloutTooLarge(InvalidRollout):
    """A rollout, its attachments, or the steps of one call are too large. Nothing was published.

    Attributes:
        size: bytes.
        limit: most bytes; None: the broker refused it, and names no limit.
    """

    def __init__(self, what: str, size: int, limit: int | None, remedy: str) -> None:
        over = "more than the broker takes" if limit is None else f"over the limit of {limit}"
        super().__init__(what, size, remedy, f"has {size} bytes, {over}")
        self.size = size
        self.limit = limit


class DeliveryFailed(ProducerError):
    """Rollouts are not, or perhaps not, in the log.

    Publish them again with their uid of ``uids`` as ``rollout_uid``: duplicates count once. With a
    new uid a group has two members for one that is in the log. If ``nothing_queued`` is true,
    repeat the call that raised, too. If ``outstanding`` is not 0, flush again.

    Attributes:
        uids: of the rollouts, in the order in which they failed; also uids that the producer made.
        group_uids: of groups whose control event (dispatched, or a member failed) was not
            delivered; they are sealed by time-out if nothing else completes them.
        outstanding: how many rollouts and events were still on their way when the time of a
            ``flush`` was up; they stay queued. 0 from every other call.
        nothing_queued: whether the failures are those of earlier calls, and this call queued
            nothing.
        entries: how many segments and control events failed.
    """

    def __init__(
        self,
        uids: Sequence[str],
        group_uids: Sequence[str],
        broker: str,
        cause: str,
        *,
        outstanding: int = 0,
        nothing_queued: bool = False,
        entries: int | None = None,
    ) -> None:
        failed, names, remedy = self._about(uids, group_uids)
        shown = f" ({_first(names)})" if names else ""
        message = f"{failed} not delivered to {broker}{shown}: {cause}{remedy}"
        if nothing_queued:
            message += "; this call queued nothing, repeat it too"
        if outstanding:
            message += f"; {_entries(outstanding, 'more ')} still to be answered; flush again"
        super().__init__(message)
        self.uids = tuple(uids)
        self.group_uids = tuple(group_uids)
        self.outstanding = outstanding
        self.nothing_queued = nothing_queued
        self.entries = len(uids) + len(group_uids) if entries is None else entries

    def _about(self, uids: Sequence[str], groups: Sequence[str]) -> tuple[str, Sequence[str], str]:
        """What failed, what to name of it, and what to do."""
        counts = ((uids, "rollout"), (groups, "control event"))
        failed = " and ".join(counted(len(each), noun) for each, noun in counts if each)
        verb = "was" if len(uids) + len(groups) == 1 else "were"
        again = "; publish them again with the same rollout_uid, duplicates are settled as such"
        return f"{failed} {verb}", uids, again if uids else ""


class ScoresNotDelivered(DeliveryFailed):
    """Scores are not, or perhaps not, in the log. Publish them again: each counts once.

    Attributes:
        uids: of the rollouts that were scored by their uid alone, in the order of failures.
        group_ids: of the groups whose scores were not delivered.
    """

    def __init__(
        self, uids: Sequence[str], group_ids: Sequence[str], broker: str, cause: str, **more: Any
    ) -> None:
        super().__init__(uids, group_ids, broker, cause, **more)
        self.group_ids, self.group_uids = self.group_uids, ()

    def _about(self, uids: Sequence[str], groups: Sequence[str]) -> tuple[str, Sequence[str], str]:
        of = f"scores of {counted(len(uids), 'rollout')} and {counted(len(groups), 'group')} were"
        names = [*uids, *(f"group {one}" for one in groups)]
        return of, names, "; publish them again, what is in the log already counts once"


class VersionConflict(ProducerError):
    """Scores of this call do not count for some rollouts. They have another version than was
    expected, or the expected version is of the same attempt.

    Attributes:
        group_id: of the rollouts.
        scorer: whose versions they are.
        expected: the version; 0: none.
        found: by the uid of each rollout whose score does not count, its newest version; if that
            is ``expected``, it is of the same attempt.
        attempt: the call's; empty: it named none.
        counted: the uids of the other rollouts; their scores count.
    """

    def __init__(self, event: Scored, found: Mapping[str, int]) -> None:
        expected = event.expect_version
        assert expected is not None, event
        others = [f"{version} of {uid}" for uid, version in found.items() if version != expected]
        again = [uid for uid, version in found.items() if version == expected]
        counting = tuple(one.rollout_uid for one in event.scores if one.rollout_uid not in found)
        wrong = f"scores of group {event.group_id} by {event.scorer!r}"
        if others:
            wrong += f": the newest version was expected to be {expected}, but is {_first(others)}"
        if again:
            wrong += f": version {expected} of {_first(again)} is of attempt {event.attempt!r} "
            wrong += "already, which counts once"
        does = f"do not count: the scores of {_first([*found])}"
        does += f"; do count: those of {_first(counting)}" if counting else ""
        super().__init__(
            f"{wrong}; {does}. Look at what was said (open_scores, rollstream show), then score "
            "anew: expect the newest version, under another attempt or none"
        )
        self.counted = counting
        self.group_id = event.group_id
        self.scorer = event.scorer
        self.expected = expected
        self.attempt = event.attempt
        self.found = dict(found)


class FlushTimedOut(BrokerUnavailable):
    """``outstanding`` rollouts and events were still on their way when the time was up. They stay
    queued.
    """

    def __init__(self, broker: str, outstanding: int, timeout_s: float) -> None:
        super().__init__(
            f"{_entries(outstanding)} did not reach {broker} within {timeout_s:g} s; "
            "check that the broker runs and can be reached from here, then flush again"
        )
        self.outstanding = outstanding


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN_MAX]) + (", …" if len(names) > _SHOWN_MAX else "")


def counted(count: int, noun: str) -> str:
    """``1 group``, ``2 groups``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _entries(count: int, more: str = "") -> str:
    return f"{count} {more}rollout or event" if count == 1 else f"{count} {more}rollouts and events"
