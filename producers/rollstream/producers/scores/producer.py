"""``ScoreProducer``: publishes late scores from a verifier."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from rollstream.producers.engine.gather import Gatherer
from rollstream.producers.engine.hooks import Encoded
from rollstream.producers.engine.outbox import Outgoing
from rollstream.producers.engine.producer import TIMEOUT_S, Blocking
from rollstream.producers.engine.waits import Wait
from rollstream.producers.errors import ScoresNotDelivered, VersionConflict
from rollstream.producers.rollouts.fields import checked
from rollstream.producers.scores.records import Flags, Score, ScoreRecord, as_score, score_record
from rollstream.producers.scores.versions import LoggedVersions
from rollstream.runtime.clock import Clock
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.errors import InvalidRollout, RollstreamError
from rollstream.schemas.ingest.entry import Entry, EntryKind
from rollstream.schemas.other_names import refuses
from rollstream.streams.broker import Broker, Delivery, TopicPartition
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.topics.layout import DEFAULT_NAMESPACE, BadName

_NO_ENTRY = Entry((), ("", ""), {}, EntryKind.ALIVE)


class _OutgoingScores(Outgoing):
    """A record of scores on its way.

    Attributes:
        record: the scores.
        delivery: what became of it; None: that is not known so far.
    """

    def __init__(self, topic: str, record: ScoreRecord) -> None:
        super().__init__(topic, _NO_ENTRY, len(record.value), record.rollout_uid)
        self.key = record.key.decode()
        self.group_uid = record.event.group_id
        self.record = record
        self.delivery: Delivery | None = None


class ScoreProducer(Blocking):
    """Publishes scores: rewards that come after a rollout has ended.

    A score is in the log when ``flush``, or the end of the ``with`` block, returns without an
    error. Otherwise ``ScoresNotDelivered`` names it: publish it again. A group that waits for
    scores is ready when its last one is in the log.

    Scores of one rollout by one scorer are versions 1, 2, … in the order of the log. An equal score
    makes no new version. Neither does a different score if the newest version has the same
    ``attempt``. So a verifier that is killed and scores again counts once. Scores that name a group
    and scores that name only a rollout have versions of their own.

    A score that names only a rollout may be older than its group's seal: by at most twice
    ``expire_after_s``, or by an hour if that is longer. Until the seal a sampler keeps it, at most
    16,384 records or 8 MiB of a partition. Above that it reads further scores later
    (``stats().scores_behind``). So if many rollouts are never sealed, score sealed groups by
    ``group_id``.

    Threads may share a producer. Processes may not: make one in each.

    Args:
        bootstrap: Kafka's ``host:port``, several with commas; or give ``broker``.
        environment: the default of all calls.
        scorer: who scores; the default of all calls.
        namespace: the first part of topics' names, as ``kafka.namespace`` of the sealers.
        generation: the last part of topics' names, as ``kafka.generation`` of the sealers.
        timeout_s: how long a call may wait for room and for the topic, and the end of the ``with``
            block for records on their way.
        broker: ``MemoryBroker`` for tests; or a ``KafkaBroker`` with properties of your own.
        clock: for tests.

    Raises:
        InvalidSettings: names the argument, its value and what to give instead.

    Examples:
        >>> with ScoreProducer("kafka:9092", environment="math", scorer="tests") as producer:
        ...     producer.publish(rollout_uid=uid, reward=1.0, rewards={"compiles": 1.0})
        ...     producer.upsert_scores(group_id, {"uid-1": 1.0, "uid-2": 0.0}, flags=["slow"])
    """

    _failure_kind = ScoresNotDelivered

    @refuses(environment_name="environment")
    def __init__(
        self,
        bootstrap: str | None = None,
        *,
        environment: str = "",
        scorer: str = "",
        namespace: str = DEFAULT_NAMESPACE,
        generation: int = 1,
        timeout_s: float = TIMEOUT_S,
        broker: Broker | None = None,
        clock: Clock | None = None,
    ) -> None:
        origin = {"environment": environment}
        super().__init__(bootstrap, broker, timeout_s, origin, namespace, generation, clock)
        self._environment = environment
        self._scorer = scorer
        self._reading = threading.Lock()  # Held by whoever reads scores.
        self._versions: dict[str, LoggedVersions] = {}  # By topic.
        # A record is of one call, and is sent at once.
        gatherer = Gatherer(record_entries_max=1, records_max=inf)
        self._begin(gatherer)

    @refuses(environment_name="environment")
    def publish(
        self,
        *,
        reward: float,
        rollout_uid: str = "",
        group_id: str = "",
        prompt_uid: str = "",
        rewards: Mapping[str, float] | None = None,
        flags: Flags = (),
        attempt: str = "",
        scorer: str = "",
        environment: str = "",
    ) -> None:
        """Queues the score of one rollout, or one score for each rollout of a group.

        Args:
            reward: finite in float32. It replaces the reward of the rollout's last segment.
            rollout_uid: as the worker published it, or as in ``SealedGroups``, batches and files.
                Or give ``group_id``.
            group_id: the id of the sealed group, from ``SealedGroups``, ``batch.sampled`` or files.
                An unknown id scores nothing, and ``stats().scores_unused`` counts it as
                ``no_group``.
            prompt_uid: the prompt of a trajectory that was submitted in steps. ``rollout_uid`` is
                then its ``trajectory_uid``.
            rewards: named components. They replace published ones of the same names.
            flags: texts that stay with the score, or a mapping of texts to booleans, of which the
                true ones stay. Batches have them, and samplers filter by them (``exclude_flags``,
                ``require_flags``).
            attempt: names a try that may be repeated with another result and must count once.
            scorer: empty: the producer's.
            environment: empty: the producer's.

        Raises:
            InvalidRollout: names argument, value and remedy; nothing was queued.
            UnknownTopic: the environment has no topic for scores.
            BrokerUnavailable: the broker did not answer within ``timeout_s``.
            BufferFull: the queue stayed full for ``timeout_s``; nothing was queued.
            ScoresNotDelivered: earlier scores failed, and this call queued nothing: repeat it too.
        """
        if bool(rollout_uid) == bool(group_id):
            raise InvalidRollout(
                "rollout_uid",
                rollout_uid,
                "give one of them, or upsert_scores(group_id, {rollout_uid: reward})",
                f"is {rollout_uid!r} and group_id {group_id!r}",
            )
        scores = {rollout_uid: Score(reward, rewards or {}, flags)}
        said = {"group_id": group_id, "attempt": attempt, "prompt_uid": prompt_uid}
        self._send(scores, scorer, environment, said)

    @refuses(environment_name="environment")
    def upsert_scores(
        self,
        group_id: str,
        scores: Mapping[str, float | Score],
        flags: Flags = (),
        *,
        prompt_uid: str = "",
        attempt: str = "",
        scorer: str = "",
        environment: str = "",
        expect_version: int | None = None,
    ) -> None:
        """Queues the scores of a group's rollouts as one record: all of them are in the log, or
        none.

        With ``expect_version`` a score counts only if the rollout still has this version. So one of
        two callers who saw the same version succeeds. Such a call returns when its scores are the
        newest versions. It reads the environment's scores, from their beginning the first time, so
        this process needs the right to read them. Meanwhile calls of other threads wait. Repeat the
        call after any error but ``VersionConflict`` and ``NewerEvent``: it counts once.

        Args:
            group_id: the id of the sealed group.
            scores: a reward or a ``Score`` by rollout uid.
            flags: flags of all these scores.
            prompt_uid: the prompt of a group of steps. ``scores`` are then by ``trajectory_uid``.
            attempt: as for ``publish``.
            scorer: empty: the producer's.
            environment: empty: the producer's.
            expect_version: the newest version of each of these rollouts by this scorer within the
                group. 0: there is none. None: any.

        Raises:
            VersionConflict: rollouts have another version, or this version is of the same attempt.
                It names the rollouts whose scores do not count, and those whose scores do.
            BrokerUnavailable: the broker did not confirm the scores within ``timeout_s``.
            NewerEvent: the scores are in the log, behind a record of a newer version. Only that
                version can tell whether they count: upgrade this process.
            InvalidRollout, UnknownTopic, BufferFull, ScoresNotDelivered: as for ``publish``.
        """
        if not group_id:
            raise InvalidRollout(
                "group_id", group_id, "give the id of the sealed group", "is empty"
            )
        if not isinstance(scores, Mapping) or "" in scores:
            raise InvalidRollout("scores", scores, "give a reward by rollout uid")
        each = {uid: as_score(score, flags) for uid, score in scores.items()}
        said = {"group_id": group_id, "attempt": attempt, "prompt_uid": prompt_uid}
        self._send(each, scorer, environment, said, expect_version)

    def _encode(self, record: Sequence[Outgoing], partitions: int) -> Encoded:
        (one,) = record
        assert isinstance(one, _OutgoingScores), one
        return Encoded(one.record.value, key=one.record.key)

    def _settled(
        self, record: Sequence[Outgoing], delivery: Delivery | None, error: RollstreamError | None
    ) -> None:
        for one in record:
            assert isinstance(one, _OutgoingScores), one
            one.delivery = delivery

    def _release(self) -> None:
        for versions in self._versions.values():
            versions.close()

    def _send(
        self,
        scores: Mapping[str, Score],
        scorer: Any,
        environment: Any,
        said: Mapping[str, Any],
        expect_version: Any = None,
    ) -> None:
        scorer, now_us = scorer or self._scorer, self._clock.now_us()
        given = {**said, "scorer": scorer, "now_us": now_us, "expect_version": expect_version}
        record = score_record(scores, **given)
        topic = self._topic(environment or self._environment)
        outgoing = _OutgoingScores(topic, record)
        if expect_version is None:
            self._put((outgoing,))
            return
        deadline = Deadline(self._timeout_s, self._clock)
        self._failures.raise_all(nothing_queued=True)
        wait = Wait(self._timeout_s, self._clock, (outgoing,), delivered=True)
        self._wait_for(wait)
        if wait.failed:
            if wait.late:
                raise self._late(f"say that the scores are in {topic}")
            raise self._failure(wait.failed)
        assert outgoing.delivery is not None, "it is in the log"
        self._check_counts(record, outgoing.delivery, deadline)

    def _check_counts(self, record: ScoreRecord, at: Delivery, deadline: Deadline) -> None:
        where = TopicPartition(at.topic, at.partition)
        shown = f"show {where} up to offset {at.offset}, to tell whether they count"
        if not self._reading.acquire(timeout=deadline.left_s()):
            raise self._late(shown)
        try:
            versions = self._versions.get(at.topic)
            if versions is None:
                partitions = self._engine.topics.partitions[at.topic]
                versions = LoggedVersions(self._broker, at.topic, partitions)
                self._versions[at.topic] = versions
            found = versions.lost(where, at.offset, deadline)
        finally:
            self._reading.release()
        if found is None:
            raise self._late(shown)
        if found:
            given = {record.given.get(uid, uid): version for uid, version in found.items()}
            raise VersionConflict(record.event, given)

    def _late(self, what: str) -> BrokerUnavailable:
        return BrokerUnavailable(
            f"{self._broker_name} did not {what} within {self._timeout_s:g} s; "
            "check that it runs and can be reached, then repeat the call"
        )

    def _topic(self, environment: Any) -> str:
        try:
            return self._layout.scores(checked("environment", environment))
        except BadName as wrong:
            raise InvalidRollout("environment", environment, wrong.remedy, wrong.finding) from None
