"""``RolloutProducer``: publishes rollouts from an env worker."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Unpack

from rollstream.producers.admission.blocks import Admitted
from rollstream.producers.admission.log import AdmissionLog
from rollstream.producers.admission.policies import FollowedPolicy, PolicyLike
from rollstream.producers.engine.outbox import Outgoing
from rollstream.producers.engine.producer import TIMEOUT_S, Blocking
from rollstream.producers.engine.shell import ProducerShell
from rollstream.producers.engine.waits import Wait
from rollstream.producers.rollouts.arguments import AppendedArguments, RolloutArguments, takes
from rollstream.producers.rollouts.group import Group
from rollstream.producers.rollouts.trajectory import Trajectory
from rollstream.producers.rollouts.validate import GroupAddress
from rollstream.runtime.at_once import at_once
from rollstream.runtime.clock import Clock


class RolloutProducer(ProducerShell[Group, Trajectory, Admitted], Blocking):
    """Publishes rollouts in batches, in the background.

    A rollout is in the log once ``flush``, or the end of the ``with`` block, returns without an
    error. Otherwise ``DeliveryFailed`` names it. Rollouts that are published within 50 ms share
    records. The order within a group is the order of the calls.

    Threads may share a producer. Processes may not: make one in each. If a process ends without
    ``close``, the producer still sends for up to 5 s, and a log message names what did not arrive.
    Do not rely on the collector: if it frees a producer that was not closed, it starts the same and
    gives a ``ResourceWarning``.

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

    _group_block, _trajectory_block, _admitted_block = Group, Trajectory, Admitted

    _lingers = True

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
            segment_idx (int, default 0): counts the segments of a rollout from 0. From 1 on, give
                ``rollout_uid``, or ``continuation_of``.
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
        self._put((outgoing,))
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
        self._put((outgoing,))
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
        return at_once(self._newest_policy(newer_than, environment, lineage, timeout_s))

    async def _deliver(self, outgoing: Sequence[Outgoing], *, raise_earlier: bool = True) -> None:
        self._put(outgoing, raise_earlier=raise_earlier)

    def _group_ended(self, address: GroupAddress) -> None:
        """What the group published does not wait for others."""
        self._engine.send_group(self._outbox.topic(address.environment), address.group_uid)

    def _wait(self, timeout_s: float, clock: Clock) -> Wait:
        return Wait(timeout_s, clock)

    async def _has_ended(self, wait: Wait) -> bool:
        return wait.block(lambda: f"{self._broker_name} to say whether a topic exists")

    async def _changed(
        self, environment: str, log: AdmissionLog, seen: int, timeout_s: float
    ) -> int:
        return log.wait(seen, timeout_s)

    async def _pause(self, seconds: float) -> None:
        self._clock.wait(threading.Event(), seconds)
