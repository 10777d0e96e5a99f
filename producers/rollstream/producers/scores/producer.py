"""``ScoreProducer``: publishes late scores from a verifier."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self

from rollstream.producers.engine.connecting import connection
from rollstream.producers.engine.process import watch
from rollstream.producers.errors import (
    IF_NO_TOPIC,
    FlushTimedOut,
    ForkedProducer,
    ProducerClosed,
    ScoresNotDelivered,
    VersionConflict,
)
from rollstream.producers.rollouts.fields import checked
from rollstream.producers.scores.records import Flags, Score, ScoreRecord, as_score, score_record
from rollstream.producers.scores.versions import LoggedVersions
from rollstream.producers.settings import check_timeout
from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.errors import InvalidRollout, RollstreamError
from rollstream.schemas.other_names import refuses
from rollstream.streams.broker import Broker, Delivery, TopicPartition
from rollstream.streams.errors import BrokerUnavailable, BufferFull, UnknownTopic
from rollstream.streams.topics.layout import DEFAULT_NAMESPACE, BadName

TIMEOUT_S = 30.0
OUTSTANDING_MAX = 16_384  # Records on their way: a broker that is slow holds up who publishes.
_POLL_S = 0.05
_log = logging.getLogger(__name__)


class ScoreProducer:
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
        made = connection(bootstrap, broker, timeout_s, origin, namespace, generation)
        self._broker, self._own_broker, self._broker_name, self._layout = made
        self._environment = environment
        self._scorer = scorer
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._writer = self._broker.writer()
        self._lock = threading.Lock()  # Held by whoever uses the writer, or reads.
        self._topics: dict[str, int] = {}  # Those that exist, with how many partitions.
        self._versions: dict[str, LoggedVersions] = {}  # By topic.
        self._outstanding = 0
        self._failed: list[tuple[ScoreRecord, RollstreamError]] = []
        self._refusal: RollstreamError | None = None
        watch(self)

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
        self._send(scores, group_id, attempt, scorer, environment, prompt_uid)

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
        call after any error but ``VersionConflict``: it counts once.

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
            InvalidRollout, UnknownTopic, BufferFull, ScoresNotDelivered: as for ``publish``.
        """
        if not group_id:
            raise InvalidRollout(
                "group_id", group_id, "give the id of the sealed group", "is empty"
            )
        if not isinstance(scores, Mapping) or "" in scores:
            raise InvalidRollout("scores", scores, "give a reward by rollout uid")
        each = {uid: as_score(score, flags) for uid, score in scores.items()}
        self._send(each, group_id, attempt, scorer, environment, prompt_uid, expect_version)

    def flush(self, timeout_s: float = TIMEOUT_S) -> None:
        """Returns when everything published before is in the log.

        Raises:
            ScoresNotDelivered: some failed.
            FlushTimedOut: some were still on their way; they stay queued.
            InvalidSettings: ``timeout_s`` is no number of seconds.
        """
        check_timeout(timeout_s, zero_allowed=True)
        with self._lock:
            self._refuse()
            self._drain(Deadline(timeout_s, self._clock))
            self._raise_failures()
            if self._outstanding:
                raise FlushTimedOut(self._broker_name, self._outstanding, timeout_s)

    def close(self) -> None:
        """Flushes within ``timeout_s`` and releases everything. Idempotent.

        Raises:
            ScoresNotDelivered: names scores that are not, or perhaps not, in the log.
        """
        with self._lock:
            if self._refusal is not None:
                return
            self._refusal = ProducerClosed()
            self._drain(Deadline(self._timeout_s, self._clock))
            self._writer.abandon()  # What is still on its way is reported as in doubt.
            for versions in self._versions.values():
                versions.close()
        if self._own_broker is not None:
            self._own_broker.close()
        self._raise_failures()

    def after_fork(self) -> None:
        """Runs in a forked child: the producer stays the parent's."""
        self._lock = threading.Lock()  # Another thread may have held it.
        self._refusal = ForkedProducer(
            "this producer was made before the process was forked off; make one in each process"
        )

    def at_exit(self, timeout_s: float) -> None:
        """Runs at the end of the process."""
        self._timeout_s = min(self._timeout_s, timeout_s)
        try:
            self.close()
        except Exception as error:  # noqa: BLE001  The other producers are to be ended too.
            _log.error("a producer of scores was not closed: %s", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except ScoresNotDelivered as failed:
            if error is None:
                raise
            error.add_note(str(failed))  # What the caller's block raised stays in front.

    def _send(
        self,
        scores: Mapping[str, Score],
        group_id: Any,
        attempt: Any,
        scorer: Any,
        named: Any,
        prompt_uid: Any,
        expect_version: Any = None,
    ) -> None:
        record = score_record(
            scores,
            group_id=group_id,
            scorer=scorer or self._scorer,
            attempt=attempt,
            now_us=self._clock.now_us(),
            prompt_uid=prompt_uid,
            expect_version=expect_version,
        )
        topic = self._topic(named or self._environment)
        deadline = Deadline(self._timeout_s, self._clock)
        with self._lock:
            self._refuse()
            self._find(topic, deadline)
            self._writer.poll(0.0)
            self._raise_failures()
            delivered: list[Delivery] = []
            while not self._append(topic, record, delivered):
                if deadline.passed():
                    raise BufferFull(
                        f"no room for {self._timeout_s:g} s, with the scores of "
                        f"{self._outstanding} records on their way to {self._broker_name}; check "
                        "that the broker runs and can be reached; nothing was queued"
                    )
                self._writer.poll(deadline.slice_s(_POLL_S))
                deadline.log_waiting(lambda: f"room in the buffer for {self._broker_name}")
            if expect_version is not None:
                self._await_delivery(topic, delivered, deadline)
                self._check_counts(record, delivered[0], deadline)

    def _await_delivery(
        self, topic: str, delivered: Sequence[Delivery], deadline: Deadline
    ) -> None:
        while not delivered:
            if deadline.passed():
                raise BrokerUnavailable(
                    f"{self._broker_name} did not say within {self._timeout_s:g} s that the scores "
                    f"are in {topic}; check that it runs and can be reached, then repeat the call"
                )
            self._writer.poll(deadline.slice_s(_POLL_S))
            deadline.log_waiting(lambda: f"{self._broker_name} to take scores")
        self._raise_failures()

    def _check_counts(self, record: ScoreRecord, at: Delivery, deadline: Deadline) -> None:
        versions = self._versions.get(at.topic)
        if versions is None:
            versions = LoggedVersions(self._broker, at.topic, self._topics[at.topic])
            self._versions[at.topic] = versions
        where = TopicPartition(at.topic, at.partition)
        found = versions.lost(where, at.offset, deadline)
        if found:
            given = {record.given.get(uid, uid): version for uid, version in found.items()}
            raise VersionConflict(record.event, given)

    def _append(self, topic: str, record: ScoreRecord, delivered: list[Delivery]) -> bool:
        if self._outstanding >= OUTSTANDING_MAX:
            return False
        try:
            answered = partial(self._on_delivery, record, delivered)
            self._writer.append(topic, record.value, key=record.key, on_delivery=answered)
        except BufferFull:
            return False
        self._outstanding += 1
        return True

    def _on_delivery(
        self, record: ScoreRecord, delivered: list[Delivery], delivery: Delivery
    ) -> None:
        self._outstanding -= 1
        delivered.append(delivery)
        if delivery.error is not None:
            self._failed.append((record, delivery.error))

    def _topic(self, environment: Any) -> str:
        if not environment:
            remedy = "name it here or for the ScoreProducer"
            raise InvalidRollout("environment", environment, remedy, "is empty")
        try:
            return self._layout.scores(checked("environment", environment))
        except BadName as wrong:
            raise InvalidRollout("environment", environment, wrong.remedy, wrong.finding) from None

    def _find(self, topic: str, deadline: Deadline) -> None:
        while topic not in self._topics:
            try:
                found = self._writer.partitions(topic, deadline.slice_s(_POLL_S * 10))
                self._topics[topic] = found
            except UnknownTopic as error:
                raise UnknownTopic(
                    f"topic {topic} does not exist on {self._broker_name}; {IF_NO_TOPIC}"
                ) from error
            except BrokerUnavailable:
                if deadline.passed():
                    raise
                deadline.log_waiting(lambda: f"{self._broker_name} to say whether {topic} exists")

    def _drain(self, deadline: Deadline) -> None:
        while self._outstanding:
            self._writer.poll(deadline.slice_s(_POLL_S))
            if deadline.passed():
                break
            deadline.log_waiting(lambda: f"{self._broker_name} to take what was published")

    def _refuse(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def _raise_failures(self) -> None:
        if not self._failed:
            return
        failed, self._failed = self._failed, []
        uids = dict.fromkeys(one.rollout_uid for one, _ in failed if one.rollout_uid)
        groups = dict.fromkeys(one.event.group_id for one, _ in failed if one.event.group_id)
        cause = str(failed[0][1])
        raise ScoresNotDelivered(
            list(uids), list(groups), self._broker_name, cause, self._outstanding
        )
