"""``StepProducer``: single steps of trajectories, from writers that hold no trajectory open."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from rollstream.producers.admission.blocks import Admitted, AsyncAdmitted
from rollstream.producers.aio import AsyncRolloutProducer
from rollstream.producers.client import RolloutProducer
from rollstream.producers.engine.gather import Gatherer
from rollstream.producers.engine.outbox import Outgoing
from rollstream.producers.engine.producer import TIMEOUT_S
from rollstream.producers.engine.shell import AdmittedT, GroupT, ProducerShell, TrajectoryT
from rollstream.producers.rollouts.fields import checked
from rollstream.producers.rollouts.group import AsyncGroup, Group
from rollstream.producers.rollouts.trajectory import AsyncTrajectory, Trajectory
from rollstream.producers.settings import at_least_1
from rollstream.producers.steps.entries import StepEntries, Submission
from rollstream.producers.steps.segments import Step
from rollstream.producers.steps.submitted import MAX_OPEN_PROMPTS
from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.other_names import refuses
from rollstream.streams.broker import Broker, Delivery
from rollstream.streams.errors import BrokerUnavailable, UnknownTopic
from rollstream.streams.topics.layout import DEFAULT_NAMESPACE

_AGAIN_S = 0.1  # Until a broker that does not answer is asked again.


class _StepWriter(ProducerShell[GroupT, TrajectoryT, AdmittedT]):
    """What both producers of steps are made with."""

    @refuses(environment="it to submit_step", environment_name="environment to submit_step")
    def __init__(
        self,
        bootstrap: str | None = None,
        *,
        max_open_prompts: int = MAX_OPEN_PROMPTS,
        worker_id: str = "",
        namespace: str = DEFAULT_NAMESPACE,
        generation: int = 1,
        timeout_s: float = TIMEOUT_S,
        broker: Broker | None = None,
        clock: Clock | None = None,
    ) -> None:
        at_least_1("max_open_prompts", max_open_prompts)
        super().__init__(
            bootstrap,
            worker_id=worker_id,
            namespace=namespace,
            generation=generation,
            timeout_s=timeout_s,
            broker=broker,
            clock=clock,
        )
        self._entries = StepEntries(self._outbox, max_open_prompts, self._clock)
        self._follows: set[str] = set()  # Environments whose policies were read once.
        # When a producer whose calls do not wait asks for them again, before that.
        self._ask_again_s: dict[str, float] = {}

    def _settled(
        self, record: Sequence[Outgoing], delivery: Delivery | None, error: RollstreamError | None
    ) -> None:
        if error is not None:
            self._entries.lose(record)

    def _topic_of(self, environment: str) -> str:
        self._engine.refuse()
        return self._outbox.topic(checked("environment", environment))


class StepProducer(_StepWriter[Group, Trajectory, Admitted], RolloutProducer):
    """Publishes steps of trajectories in batches, in the background. It never waits for readers.

    A step is a rollout segment of the group ``prompt_uid``. The prompt is finished, and ready for a
    ``TrajectoryPool``, when ``n_rollouts`` trajectories have ended. Without ``n_rollouts`` it is
    finished when all its trajectories have ended and none began for ``prompt_idle_s`` of log time.

    Several processes may submit steps of one trajectory, in any order. A step that is submitted
    again, here or elsewhere, counts once. Delivery, ``flush``, ``close`` and the end of a process
    are as for ``RolloutProducer``. You may publish whole rollouts with the same producer.

    Args:
        bootstrap: Kafka's ``host:port``, several with commas; or give ``broker``.
        max_open_prompts: most open prompts of an environment. A prompt opens with step 0 of a
            trajectory. It closes when its ``n_rollouts`` trajectories have ended at this producer,
            or, without that number, all that began here. It also closes 300 s after its newest
            step, so let this be large enough if several producers share prompts.
        worker_id: this process; empty: host name and process id.
        namespace: the first part of topics' names, as ``kafka.namespace`` of the sealers.
        generation: the last part of topics' names, as ``kafka.generation`` of the sealers.
        timeout_s: how long steps wait in the queue for the broker to find the environment's topic
            and policies, and the end of the ``with`` block for records on their way.
        broker: ``MemoryBroker`` for tests; or a ``KafkaBroker`` with properties of your own.
        clock: for tests.

    Raises:
        InvalidSettings: names the argument, its value and what to give instead.

    Examples:
        >>> with StepProducer("kafka:9092") as producer:
        ...     producer.submit_step(
        ...         Step(
        ...             prompt_ids, response_ids, reward=0.0, trajectory_uid="t-17",
        ...             prompt_uid="p-3", step_index=0, policy_version="step-120", n_rollouts=8,
        ...         ),
        ...         environment="web",
        ...     )
    """

    def _begin(self, gatherer: Gatherer | None = None) -> None:
        super()._begin(gatherer)
        self._submitting = threading.Lock()

    def submit_step(self, step: Step, *, environment: str) -> None:
        """Submits one step, as ``submit_steps`` does."""
        self.submit_steps([step], environment=environment)

    def submit_steps(self, steps: Iterable[Step], *, environment: str) -> None:
        """Queues all of these steps, in their order, or none of them. It returns at once, and has
        copied the arrays by then.

        Steps are held until the broker has named the environment's partitions and policies, as at
        the first call. Then they are checked against the policies, and go. They fail if that takes
        ``timeout_s``. ``flush``, or a later call, raises ``DeliveryFailed`` for these, and for a
        held step whose policy is wrong, or whose environment has no topic.

        Args:
            steps: of any trajectories of the environment.
            environment: where the trajectories were played.

        Raises:
            InvalidRollout: names the step's index, field, value and remedy.
            Contradiction: a step contradicts what was submitted here before. The last 65,536 steps,
                trajectories and prompts of the environment are compared.
            RolloutTooLarge: the steps of this call exceed the queue's bound; split the call.
            BufferFull: the queue has no room now, or ``max_open_prompts`` are open and these steps
                begin another one. Nothing was queued: submit them again later.
            DeliveryFailed: steps of earlier calls failed. This call queued nothing: repeat it too.
            TopicMismatch: as for ``RolloutProducer.publish``.
        """
        self._topic_of(environment)
        log = self._admission(environment) if environment in self._follows else None
        self._submit(partial(self._entries.steps, steps, environment, log))

    def complete_trajectory(
        self,
        trajectory_uid: str,
        *,
        environment: str,
        prompt_uid: str = "",
        steps: int | None = None,
    ) -> None:
        """Ends a trajectory whose last step had no ``is_last``. You may repeat the call.

        Submit it when the trajectory's first step is in the log: an earlier end counts for nothing.

        Args:
            trajectory_uid: as in its steps.
            environment: where it was played.
            prompt_uid: the trajectory's prompt. You may leave it out if a step of the trajectory
                was submitted here in the last 300 s, and if only one prompt has this
                ``trajectory_uid``. The producer knows the newest 65,536 trajectories.
            steps: how many steps it has. The trajectory is complete when all of them are in the
                log. None: the newest step that is in the log before this call is the last one. A
                later step then breaks the trajectory. So give it if other processes submit steps of
                the trajectory, or if one may have failed.

        Raises:
            InvalidRollout: ``prompt_uid`` is needed, or names field, value and remedy.
            Contradiction: the trajectory has another length, or another prompt, here.
            BufferFull, DeliveryFailed, TopicMismatch: as for ``submit_steps``.
        """
        self._topic_of(environment)
        self._submit(partial(self._entries.end, environment, trajectory_uid, prompt_uid, steps))

    def fail_trajectory(
        self,
        trajectory_uid: str,
        *,
        environment: str,
        reason: str | BaseException,
        prompt_uid: str = "",
        n_rollouts: int | None = None,
        example_id: str = "",
    ) -> None:
        """Ends a trajectory that will not be finished. Nobody trains on its steps, and its prompt
        does not wait for it. You may repeat the call. Errors and other arguments are those of
        ``complete_trajectory``.

        Args:
            reason: why, as text or an error; the first 200 characters are kept.
            n_rollouts: trajectories of the prompt, as in its steps. Give it if the trajectory may
                fail before the prompt's first step.
            example_id: the problem, as in the prompt's steps. Empty: as in those that were
                submitted here, else ``prompt_uid``.
        """
        self._topic_of(environment)
        of = environment, trajectory_uid, prompt_uid
        self._submit(partial(self._entries.failure, *of, reason, n_rollouts, example_id))

    def _complete(
        self, topic: str, held: Sequence[Outgoing]
    ) -> dict[Outgoing, RollstreamError] | None:
        if all(one.said is None for one in held):
            return {}
        environment = self._outbox.environment_of(topic)
        log = self._admission(environment)
        if environment not in self._follows:
            now_s = SystemClock().monotonic_s()
            if now_s < self._ask_again_s.get(environment, 0.0):
                return None
            self._ask_again_s[environment] = now_s + _AGAIN_S
            try:
                with suppress(UnknownTopic):  # As in an older deployment: none is known.
                    log.wait(0, 0.0)
            except BrokerUnavailable:
                return None
            self._follows.add(environment)
        return self._entries.resolve(held, log)

    def _submit(self, made: Callable[[], Submission]) -> None:
        with self._submitting:
            submission = made()
            if submission.outgoing:
                self._queue_now(submission.outgoing)
                submission.remember()

    def _queue_now(self, outgoing: Sequence[Outgoing]) -> None:
        """Queues all of them; raises ``BufferFull`` at once. They are held if their topic, or a
        policy, is not known, or if others of the topic are."""
        self._failures.raise_all(nothing_queued=True)
        engine, topic = self._engine, outgoing[0].topic
        is_known = topic in engine.topics.partitions and all(one.said is None for one in outgoing)
        if topic in engine.holding or not is_known:
            # The broker's time, whatever the producer's clock.
            taken = engine.hold(outgoing, Deadline(self._timeout_s))
        else:
            taken = engine.put(outgoing)
        if not taken:
            raise engine.full("no room now")


class AsyncStepProducer(
    _StepWriter[AsyncGroup, AsyncTrajectory, AsyncAdmitted], AsyncRolloutProducer
):
    """Publishes steps with ``await``: a call returns when the steps are in the log.

    All coroutines of one event loop may share it. The arguments are those of ``StepProducer``.
    ``timeout_s`` bounds the wait for an environment's topic and policies, and once more the
    delivery of steps.

    Examples:
        >>> async with AsyncStepProducer("kafka:9092") as producer:
        ...     await producer.submit_steps(steps, environment="web")
    """

    async def submit_step(self, step: Step, *, environment: str) -> None:
        """Submits one step, as ``submit_steps`` does."""
        await self.submit_steps([step], environment=environment)

    async def submit_steps(self, steps: Iterable[Step], *, environment: str) -> None:
        """Queues all of these steps, in their order, or none; returns when they are in the log.

        Args:
            steps: of any trajectories of the environment.
            environment: where the trajectories were played.

        Raises:
            InvalidRollout, Contradiction, RolloutTooLarge, BufferFull: as for
                ``StepProducer.submit_steps``; nothing was queued.
            DeliveryFailed: names trajectories with a step that is not, or perhaps not, in the log.
                Submit all steps again.
            UnknownTopic, BrokerUnavailable, TopicMismatch: as for ``RolloutProducer.publish``.
        """
        deadline, log = await self._find_of(environment), self._admission(environment)
        if environment not in self._follows:
            await self._read_announced(environment, deadline)
            self._follows.add(environment)
        await self._submit(self._entries.steps(steps, environment, log))

    async def complete_trajectory(
        self,
        trajectory_uid: str,
        *,
        environment: str,
        prompt_uid: str = "",
        steps: int | None = None,
    ) -> None:
        """Ends a trajectory, as ``StepProducer.complete_trajectory`` does; returns when that is in
        the log. The errors are those of ``submit_steps``.
        """
        await self._find_of(environment)
        await self._submit(self._entries.end(environment, trajectory_uid, prompt_uid, steps))

    async def fail_trajectory(
        self,
        trajectory_uid: str,
        *,
        environment: str,
        reason: str | BaseException,
        prompt_uid: str = "",
        n_rollouts: int | None = None,
        example_id: str = "",
    ) -> None:
        """Ends a trajectory that will not be finished, as ``StepProducer.fail_trajectory`` does;
        returns when that is in the log. The errors are those of ``submit_steps``.
        """
        await self._find_of(environment)
        of = environment, trajectory_uid, prompt_uid
        await self._submit(self._entries.failure(*of, reason, n_rollouts, example_id))

    async def _find_of(self, environment: str) -> Deadline:
        """Waits for the environment's partitions; returns the deadline of the wait."""
        self._use_loop(asyncio.get_running_loop())
        deadline = Deadline(self._timeout_s)
        await self._find(self._topic_of(environment), deadline)
        return deadline

    async def _submit(self, submission: Submission) -> None:
        """Gathers all of it, of a topic that is known, or raises ``BufferFull`` at once; returns
        when it is in the log."""
        outgoing, remember = submission
        if not outgoing:
            return
        wait = self._wait(self._timeout_s, self._clock, outgoing)
        if not self._engine.put(outgoing, wait, at_once=True):
            raise self._engine.full("no room now")
        self._send_at_end_of_tick()
        remember()
        try:
            await self._concluded(wait)
        except BaseException:
            self._entries.lose([one for one in outgoing if not one.answered])
            raise
