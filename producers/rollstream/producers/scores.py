"""``ScoreProducer``: publishes late scores from a verifier."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self

from rollstream.producers.connecting import connection
from rollstream.producers.errors import (
    FlushTimedOut,
    ForkedProducer,
    ProducerClosed,
    ScoresNotDelivered,
    VersionConflict,
)
from rollstream.producers.process import watch
from rollstream.producers.score_records import Flags, Score, ScoreRecord, as_score, score_record
from rollstream.producers.score_versions import LoggedVersions
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
    """Publishes scores; a group that waits for them can be served once its last one is there.

    A score whose ``publish`` returned is in the log once ``flush``, or the end of the ``with``
    block, returns without an error; otherwise ``ScoresNotDelivered`` names it. A score may come
    before its group is sealed. Of one rollout and scorer each score that differs from the one
    before is its next version, from 1, in the order of the log; the same again changes nothing.
    With an ``attempt``, one that differs and follows a score of the same attempt changes nothing
    either: so a verifier that is killed and scores again counts once. Threads may share a
    producer; processes may not.

    Args:
        bootstrap: Kafka's ``host:port``, several with commas; or give ``broker``.
        environment: used where a call names none.
        scorer: who scores, used where a call names none.
        namespace: the first part of topics' names.
        generation: the last part of topics' names.
        timeout_s: how long a call may wait for room and for the topic, and the end of the ``with``
            block for records on their way.
        broker: for tests, ``MemoryBroker``; or a ``KafkaBroker`` with properties of your own.
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
        """Queues the score of one rollout, or the same one for each rollout of a group.

        Args:
            reward: finite in float32; what the rollout's last segment earned.
            rollout_uid: as the env worker published it, or as ``SealedGroups``, batches and files
                have it; or give ``group_id``.
            prompt_uid: of a trajectory that was submitted in steps: then ``rollout_uid`` is its
                ``trajectory_uid``.
            group_id: as sealed: of ``SealedGroups``, ``batch.sampled``, or files. A score of no
                such group is taken and scores nothing: ``stats().scores_unused`` counts it as
                ``no_group``.
            rewards: named components, which go before published ones of the same names.
            flags: texts that stay with the score; of a mapping to booleans those that are true. A
                batch has them, and ``exclude_flags`` and ``require_flags`` of a sampler filter by
                them.
            attempt: names what may be done again with another result and is to count once.
            scorer: empty: the producer's.
            environment: empty: the producer's.

        Raises:
            InvalidRollout: names argument, value and remedy; nothing was queued.
            UnknownTopic: the environment has no topic of scores (asked once).
            BrokerUnavailable: the broker did not answer that question within ``timeout_s``.
            BufferFull: the queue stayed at its bound for ``timeout_s``; nothing was queued.
            ScoresNotDelivered: scores of earlier calls failed; repeat this call too.
        """
        if bool(rollout_uid) == bool(group_id):
            raise InvalidRollout(
                f"rollout_uid is {rollout_uid!r} and group_id {group_id!r}; give one of them, or "
                "upsert_scores(group_id, {rollout_uid: reward})"
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
        """Queues the scores of rollouts of one group, as one record that is in the log whole or not
        at all.

        With ``expect_version`` each score counts only where that is its rollout's newest version
        when the record comes in the log, for every reader alike: of several who look at one version
        and score anew, one succeeds. Such a call returns once the scores are the newest versions:
        it waits for its record and reads the environment's scores up to it, the first one from
        their beginning, which this process must be allowed to; other threads' calls wait meanwhile.
        Where it raises anything but ``VersionConflict``, repeat it: what is in the log counts once.

        Args:
            group_id: as sealed.
            scores: by rollout uid, a reward or a ``Score``.
            flags: of all of them.
            prompt_uid: of a group of steps: then ``scores`` are by ``trajectory_uid``.
            attempt: as for ``publish``, which raises the same.
            scorer: likewise.
            environment: likewise.
            expect_version: the newest version of each of these rollouts by the scorer, as scored
                within the group; 0: there is none. None: whatever it is.

        Raises:
            VersionConflict: names the rollouts for which a score does not count, since they have
                another version, or this version is of the same attempt; and those for which it
                does: each rollout is decided by itself.
            BrokerUnavailable: what became of the scores was not known within ``timeout_s``.
        """
        if not group_id:
            raise InvalidRollout("group_id is empty; give the id of the sealed group")
        if not isinstance(scores, Mapping) or "" in scores:
            raise InvalidRollout(f"scores is {scores!r:.80}; give a reward by rollout uid")
        each = {uid: as_score(score, flags) for uid, score in scores.items()}
        self._send(each, group_id, attempt, scorer, environment, prompt_uid, expect_version)

    def flush(self, timeout_s: float = TIMEOUT_S) -> None:
        """Returns once everything published before is in the log.

        Raises:
            ScoresNotDelivered: some failed. FlushTimedOut: some were still on their way; they stay
                queued. InvalidSettings: ``timeout_s`` is no number of seconds.
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
            ScoresNotDelivered: names what is not, or perhaps not, in the log.
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
            raise InvalidRollout("environment is empty; name it here or for the ScoreProducer")
        try:
            return self._layout.scores(environment)
        except (BadName, TypeError) as wrong:
            raise InvalidRollout(f"environment {wrong}") from None

    def _find(self, topic: str, deadline: Deadline) -> None:
        while topic not in self._topics:
            try:
                found = self._writer.partitions(topic, deadline.slice_s(_POLL_S * 10))
                self._topics[topic] = found
            except UnknownTopic as error:
                raise UnknownTopic(
                    f"topic {topic} does not exist on {self._broker_name}; "
                    "`rollstream topics create` makes it for the configured environments, also in "
                    "an older deployment"
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
