"""``RolloutProducer``: publishes rollouts from an env worker."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Self, Unpack

from rollstream.producers.admission.asking import newest_policy
from rollstream.producers.admission.blocks import Admitted, ShareWanted
from rollstream.producers.admission.policies import FollowedPolicy, PolicyLike
from rollstream.producers.admission.standing import ALIVE_S
from rollstream.producers.engine.linger import BEHIND_S, IDLE_S, LINGER_S
from rollstream.producers.engine.outbox import Outgoing
from rollstream.producers.engine.process import EXIT_S
from rollstream.producers.engine.shell import LOOK_TIMEOUT_S, TIMEOUT_S, ProducerShell
from rollstream.producers.errors import DeliveryFailed, FlushTimedOut
from rollstream.producers.rollouts.arguments import AppendedArguments, RolloutArguments, takes
from rollstream.producers.rollouts.blocks import at_once
from rollstream.producers.rollouts.group import Group
from rollstream.producers.rollouts.membership import Membership
from rollstream.producers.rollouts.trajectory import Trajectory, Turns
from rollstream.producers.rollouts.validate import GroupAddress
from rollstream.producers.settings import check_timeout
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.stepping import StepThread
from rollstream.schemas.errors import RollstreamError
from rollstream.streams.errors import BrokerUnavailable, TopicMismatch

_log = logging.getLogger(__name__)
LINGER_THREAD = "rollstream-linger"
_ASK_S = 0.5  # A broker that is not there is known, and logged, after this long.
_ROOM_POLL_S = 0.05  # How long one thread holds the writer while it waits for an answer.


class RolloutProducer(ProducerShell[Group, Trajectory, Admitted]):
    """Publishes rollouts in batches, in the background.

    A rollout is in the log once ``flush``, or the end of the ``with`` block, returns without an
    error. Otherwise ``DeliveryFailed`` names it. Rollouts that are published within 50 ms share
    records. The order within a group is the order of the calls.

    Threads may share a producer. Processes may not: make one in each. If a process ends without
    ``close``, the producer still sends for up to 5 s, and a log message names what did not arrive.
    A producer that is collected without ``close`` does the same, with a ``ResourceWarning``.

    Three times bound different things. ``timeout_s`` bounds a ``publish`` that waits for a full
    queue, and the end of the ``with`` block. ``flush`` has a time of its own. A delivery fails only
    after librdkafka's ``message.timeout.ms``, which is five minutes. To shorten it, pass
    ``broker=KafkaBroker("kafka:9092", {"message.timeout.ms": "60000"})`` of
    ``rollstream.streams.kafka``.

    Args:
        bootstrap: Kafka's ``host:port``, several with commas; or give ``broker``.
        environment: the default of all calls.
        replica_id: the env replica; ``max_per_replica`` bounds its share of a group.
        worker_id: this process; empty: host name and process id.
        lineage: the model to sample with; its samplers limit ``dispatch`` and ``admit``. Empty: the
            default one. None: the only model in training. Name it if two models are trained.
        namespace: the first part of topics' names, as ``kafka.namespace`` of the sealers.
        generation: the last part of topics' names, as ``kafka.generation`` of the sealers.
        timeout_s: how long a publish may wait for room and for the topic, and the end of the
            ``with`` block for records on their way.
        broker: ``MemoryBroker`` for tests; or a ``KafkaBroker`` with properties of your own.
        clock: for tests.

    Raises:
        InvalidSettings: names the argument, its value and what to give instead.

    Examples:
        >>> with RolloutProducer("kafka:9092", environment="math") as producer:
        ...     policy = producer.policy()
        ...     model.load(policy.weights)
        ...     prompt, output, logprobs = model.sample(problem)
        ...     producer.publish(
        ...         example_id="aime-17", policy=policy,
        ...         prompt_tokens=prompt, output_tokens=output, logprobs=logprobs, reward=1.0,
        ...     )
    """

    def _begin(self) -> None:
        self._lock = threading.Lock()  # Held by whoever uses the sender.
        self._thread = StepThread(self._tick, LINGER_THREAD, LINGER_S)
        self._idle = True  # Whether the thread has nothing to do, until it is woken.
        self._lone = False  # Whether the last linger held one entry.
        self._alone_at_s = 0.0  # When the next entry may be sent alone.

    @takes(RolloutArguments)
    def publish(self, **rollout: Unpack[RolloutArguments]) -> str:
        """Queues one rollout segment and returns its uid at once; its arrays are copied by then.

        Arrays are lists, NumPy arrays, torch tensors or whatever NumPy can read; masked arrays are
        refused. n is the number of output tokens. A rollout that was aborted before its first token
        has none: its reward counts in its group.

        Args:
            example_id (str): the problem.
            policy (PolicyLike): what sampled, as ``policy()`` returned it. It gives the next four.
            policy_version (str): the policy that sampled, as the trainer named it.
            weight_step (int or int64 [n]): optimizer steps behind its weights, one number or one
                for each output token. -1: not known, and samplers with a limit of lag drop it.
                Needed without ``policy``.
            policy_epoch (int, default 0): ``epoch`` of the policy. Without it, samples from after a
                trainer's resume count as sampled before it.
            lineage (str, default the producer's): policies are compared only within one.
            prompt_tokens (int32 [prompt], default empty): token ids, none negative.
            output_tokens (int32 [n], default empty): token ids, none negative.
            logprobs (float32 [n], float or None, default None): natural logarithms of the
                probabilities of ``output_tokens`` under the policy that sampled, or their sum.
                Batches have NaN for None.
            loss_mask (bool [n] or None, default None): False for tokens of tools and of the
                environment. None: all True.
            reward (float or None, default None): None: the group waits for a score
                (``ScoreProducer``), for ``score_timeout_s``. In a trajectory only the last
                segment's None waits; if that one alone has a reward, the others have it too in a
                batch, else they have 0.
            rewards (mapping of str to float, default {}): named components of the reward.
            stop_reason (str, default 'stop'): ``stop``, ``length``, ``abort``, or a word of your
                own.
            metadata (mapping, default {}): anything that JSON can hold.
            actor_logprobs (float32 [n], float or None, default None): another name for
                ``logprobs``.
            actor_policy_version (str): another name for ``policy_version``.
            old_logprobs (float32 [n], float or None, default None): the trainer's recomputation.
            old_policy_version (str, default ''): the policy that recomputed.
            ref_logprobs (float32 [n] or None, default None): under the reference policy.
            token_rewards (float32 [n] or None, default None): one for each output token.
            token_arrays (mapping of str to array [n, …], default {}): of any plain dtype; at most 1
                MiB a token, and 64 names.
            attachments (mapping of str to bytes, default {}): together at most 4 MiB.
            messages (sequence of mappings, default []): the conversation, for people to read.
            rollout_uid (str, default a new one): makes a retry idempotent, across processes too.
            segment_idx (int, default 0): counts the segments of a rollout from 0.
            is_last_segment (bool, default True): whether the rollout ends here.
            continuation_of (str, default ''): the uid of the rollout that this one goes on with.
            prefix_hash (str, default ''): ``rollstream.schemas.ids.prefix_hash`` of the segments
                before.
            environment (str, default the producer's): where the rollout was played.
            group_uid (str, default ''): the members of a group share it; '': the sealer infers it.
            group_size (int, default 0): members of a complete group; 0: ``target_group_size``.
            split (str, default 'train'): or ``eval``: stored, and never trained on.
            replica_id (str, default the producer's): the env replica.

        Raises:
            InvalidRollout: names field, value and remedy. A training rollout needs a token.
            UnknownTopic: the environment has no topic.
            BrokerUnavailable: the broker did not answer within ``timeout_s``.
            TopicMismatch: the topic got more partitions; make a new producer.
            BufferFull: the queue stayed full for ``timeout_s``; nothing was queued.
            DeliveryFailed: earlier rollouts failed, and this call queued nothing: repeat it too.
        """
        outgoing = self._outbox.rollout(self._outbox.segment(rollout))
        self._send(outgoing, raise_earlier=True, of_a_block=False)
        return outgoing.rollout_uid

    @takes(AppendedArguments)
    def append_to_group(self, **rollout: Unpack[AppendedArguments]) -> str:
        """Publishes a whole rollout that makes the group ``group_uid`` of ``example_id`` one member
        larger; returns its uid at once.

        The group must have begun and must not be sealed when the sealer reads the rollout.
        Otherwise it is in no group, and is settled as ``group_sealed``. A full group is sealed at
        once, so append before the last member is published. A retry counts once.

        Arguments and errors are those of ``publish``. ``InvalidRollout`` is raised if no group is
        named.
        """
        outgoing = self._outbox.rollout(self._outbox.appended(rollout))
        self._send(outgoing, raise_earlier=True, of_a_block=False)
        return outgoing.rollout_uid

    def policy(
        self,
        *,
        newer_than: PolicyLike | None = None,
        environment: str = "",
        lineage: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> FollowedPolicy:
        """Returns the newest policy that the environment's trainer published; waits for the first.

        Load its weights, then publish with ``policy=``.

        Args:
            newer_than: waits for a newer policy than this one, by epoch, then step. If the trainer
                has left the branch of this one, any policy on the new branch is newer.
            environment: empty: the producer's.
            lineage: the model to sample with; None: that of ``newer_than``, else the producer's,
                else the only one in training.
            timeout_s: how long to wait.

        Raises:
            NoPolicy: the time is up; the message says what may be the reason.
            RunOver: the run is over, so no policy will come (a ``NoPolicy``). With ``newer_than``
                it is raised at once, else when the time is up, since a trainer may extend the run.
            SeveralLineages: two models are in training, and none is named.
            InvalidSettings: names the argument, its value and what to give instead.
        """
        check_timeout(timeout_s, zero_allowed=True)
        wanted = self._wanted_policy(newer_than, environment, lineage)
        log, deadline = self._admission(wanted.environment), Deadline(timeout_s, self._clock)

        async def wait(seen: int, longest_s: float) -> int:
            self._refuse()
            return log.wait(seen, longest_s)

        async def pause(longest_s: float) -> None:
            deadline.wait(longest_s)

        return at_once(newest_policy(wanted, log, wait, pause, deadline))

    def flush(self, timeout_s: float = TIMEOUT_S) -> None:
        """Returns once everything published before is in the log.

        Raises:
            DeliveryFailed: some failed. ``outstanding`` more stay queued: flush again.
            FlushTimedOut: some were still on their way; they stay queued.
            InvalidSettings: ``timeout_s`` is no number of seconds.
        """
        self._refuse()
        check_timeout(timeout_s, zero_allowed=True)
        with self._lock:
            left = self._drain(timeout_s)
            self._outbox.raise_failures(left)
        if left:
            raise FlushTimedOut(self._outbox.broker, left, timeout_s)

    def close(self) -> None:
        """Flushes within ``timeout_s`` and releases everything. Idempotent.

        Raises:
            DeliveryFailed: names the rollouts that are not, or perhaps not, in the log.
        """
        if not self._closes_now():
            return
        with self._lock:
            self._tell(self._last_to_tell())
            self._drain(self._timeout_s)
        self._thread.join()
        self._end_admission()
        with self._lock:
            self._sender.abandon()  # What is still on its way is reported as in doubt.
        if self._own_broker is not None:
            self._own_broker.close()
        self._raise_what_failed()

    def after_fork(self) -> None:
        super().after_fork()
        self._lock = threading.Lock()  # Another thread may have held it.

    def at_exit(self, timeout_s: float) -> None:
        self._clock, self._timeout_s = SystemClock(), min(self._timeout_s, timeout_s)
        try:
            self.close()
        except Exception as error:  # noqa: BLE001  The other producers are to be ended too.
            _log.error("a producer was not closed: %s", error)

    def __del__(self) -> None:
        # An __init__ that raised made no sender.
        left = self._sender.outstanding if hasattr(self, "_thread") else 0
        if not left or self._refusal is not None:
            return
        warnings.warn(
            f"a producer was dropped without close(), with {left} rollouts and events on their "
            "way; they are still sent. Use a with block, or call close()",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )
        # Not here: a collection runs wherever memory is asked for, and must not wait for a broker.
        # A thread that is no daemon, so the end of the process waits for it.
        threading.Thread(target=self.at_exit, args=(EXIT_S,), name="rollstream-dropped").start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except DeliveryFailed as failed:
            if error is None:
                raise
            error.add_note(str(failed))  # What the caller's block raised stays in front.

    def _group(self, membership: Membership, wanted: ShareWanted | None) -> Group:
        admitted = None if wanted is None else self._admitted(wanted)
        return Group(membership, self._queue, self._send_group, admitted)

    def _admitted(self, wanted: ShareWanted) -> Admitted:
        return Admitted(wanted, self._read_granted, self._tell_waiting, self._stay_alive)

    def _read_granted(self, wanted: ShareWanted) -> None:
        # The broker's time, whatever the producer's clock.
        deadline = Deadline(self._answer_s(wanted.timeout_s))
        topic = self._outbox.topic(wanted.environment)
        if topic not in self._sender.partitions:
            with self._lock:
                self._refuse()
                self._find_topic(topic, deadline)
        if not wanted.admission.was_read:
            self._refuse()
            wanted.admission.read(deadline.left_s())

    def _tell_waiting(self, environment: str) -> None:
        self._send(self._outbox.alive(environment), raise_earlier=False, of_a_block=True)

    def _stay_alive(self) -> None:
        with self._lock:
            self._refuse()
            if self._idle:  # It may be asleep for longer than a producer may be silent.
                self._idle = False
                self._thread.wake()

    def _trajectory(self, turns: Turns) -> Trajectory:
        return Trajectory(turns, self._queue)

    async def _queue(self, outgoing: Outgoing, *, raise_earlier: bool = True) -> None:
        self._send(outgoing, raise_earlier=raise_earlier, of_a_block=True)

    def _send(self, outgoing: Outgoing, *, raise_earlier: bool, of_a_block: bool) -> None:
        sender = self._sender
        deadline = None
        while True:
            with self._lock:
                self._refuse()
                if outgoing.topic not in sender.partitions:
                    self._find_topic(outgoing.topic, Deadline(self._timeout_s))
                if raise_earlier and self._outbox.undelivered:
                    self._outbox.raise_failures(nothing_queued=True)
                if sender.append(outgoing):
                    if self._idle and (of_a_block or not self._sent_alone()):
                        self._idle = False
                        self._thread.wake()
                    return
                deadline = deadline or Deadline(self._timeout_s, self._clock)
                if deadline.passed():
                    raise self._full()
                sender.send_all()
                sender.poll(deadline.slice_s(_ROOM_POLL_S))
            deadline.log_waiting(lambda: f"room in the buffer for {self._outbox.broker}")

    def _send_together(self, outgoing: Sequence[Outgoing]) -> None:
        """Queues all of them, of one topic, or none; never waits for room."""
        sender, topic = self._sender, outgoing[0].topic
        with self._lock:
            self._refuse()
            if topic not in sender.partitions:
                self._find_topic(topic, Deadline(self._timeout_s))
            self._outbox.raise_failures(nothing_queued=True)
            if not sender.append_together(outgoing):
                sender.send_all()
                sender.poll(0.0)
                if not sender.append_together(outgoing):
                    raise self._full(at_once=True)
            if self._idle:
                self._idle = False
                self._thread.wake()

    def _sent_alone(self) -> bool:
        """Sends what was gathered at once, where waiting for others is likely in vain: the last
        linger held one entry, and none has ended since. That saves a slow worker the thread's two
        wake-ups a rollout, and the linger."""
        now_s = self._clock.monotonic_s()
        if not self._lone or now_s < self._alone_at_s:
            self._lone = False
            return False
        self._alone_at_s = now_s + LINGER_S
        self._sender.poll(0.0)
        self._sender.send_all()
        return not self._sender.gatherer.waiting

    def _send_group(self, address: GroupAddress) -> None:
        """What the group published does not wait for others: nothing more of it comes."""
        topic = self._outbox.topic(address.environment)
        with self._lock:
            if self._refusal is None:
                self._sender.send_group(topic, address.group_uid)
                self._sender.poll(0.0)

    def _settle(self, outgoing: Sequence[Outgoing], error: RollstreamError | None) -> None:
        if error is not None:
            self._outbox.keep_failures(outgoing, error)

    def _drain(self, timeout_s: float) -> int:
        """Waits until all is in the log or failed; how many are neither at the deadline."""
        deadline = Deadline(timeout_s, self._clock)
        while self._sender.outstanding:
            self._sender.send_all()
            self._sender.poll(deadline.slice_s(_ROOM_POLL_S))
            if deadline.passed():
                break
            deadline.log_waiting(lambda: f"{self._outbox.broker} to take what was published")
        return self._sender.outstanding

    def _tick(self) -> float | None:
        try:
            return self._send_and_look()
        except Exception as error:  # noqa: BLE001, whatever it is, the next call raises it
            self._die(error)
            return None

    def _send_and_look(self) -> float | None:
        sleep_s = self._end_linger()
        topic = None if sleep_s is None else self._topic_to_look_at()
        if topic is not None:  # One a tick, after sending: the answer may take its time.
            found = self._sender.changed_partitions(topic, LOOK_TIMEOUT_S)
            if found is not None:
                with self._lock:
                    self._sender.refuse(topic, found)
        return sleep_s

    def _end_linger(self) -> float | None:
        """Sends what was gathered; how long the thread may sleep then (``Step``)."""
        with self._lock:
            if self._refusal is not None:
                return None
            self._sender.poll(0.0)
            waiting = self._sender.gatherer.waiting
            if waiting:
                self._lone = waiting == 1
            idle_s = self._tell_that_it_lives()
            self._sender.send_all()
            self._idle = not self._sender.outstanding
            if self._idle:
                return idle_s
            return BEHIND_S if self._sender.gatherer.behind else LINGER_S

    def _tell_that_it_lives(self) -> float:
        """Gathers what is to be told now; how long the thread may be idle then."""
        if not self._admitting:
            return IDLE_S
        environments, next_s = self._to_tell()
        topics = self._sender.partitions
        self._tell(one for one in map(self._outbox.alive, environments) if one.topic in topics)
        return min(next_s, ALIVE_S)  # A block that begins wakes nobody.

    def _tell(self, entries: Iterable[Outgoing]) -> None:
        for alive in entries:
            with suppress(TopicMismatch):  # The next publish raises it.
                self._sender.append(alive)  # Where there is no room, much else tells it.

    def _find_topic(self, topic: str, deadline: Deadline) -> None:
        while True:
            try:
                return self._sender.find_partitions(topic, deadline.slice_s(_ASK_S))
            except BrokerUnavailable as error:
                self._sender.poll(0.0)  # The client logs why.
                if deadline.passed():
                    raise self._unreachable(topic, deadline.timeout_s) from error
                deadline.wait(_ROOM_POLL_S)
