"""Tells env workers, from a thread, how many groups they may begin."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import count

from rollstream.runtime.clock import Clock
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.stepping import StepThread
from rollstream.sampler.decide.admission.granting import REPEAT_S, Granting, Observed, Told
from rollstream.sampler.decide.admission.records import Written
from rollstream.sampler.engine.outbox.announcing import Announcer
from rollstream.schemas.codec import encode
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.events import PolicyAnnounced, ProducerShare, SharesGranted, SharesValid
from rollstream.streams.errors import Fenced

LOOK_EVERY_S = 0.25
# Of a fleet of more than 5,000 the sampler looks less often: a look costs some 2 µs a producer.
LOOK_A_PRODUCER_S = 50e-6
LEFT_REPEAT_S = 3_600.0  # What says that the sampler takes part no longer stays true.
CLOSE_WAIT_S = 5.0
_log = logging.getLogger("rollstream.sampler")


class ShareGranter:
    """Of one sampler, as long as it owns its decision log.

    Args:
        announcer: writes the records, and repeats them.
        observe: what the shares depend on; None: the log is not owned.
    """

    def __init__(
        self,
        granting: Granting,
        announcer: Announcer,
        observe: Callable[[], Observed | None],
        clock: Clock,
    ) -> None:
        self._granting = granting
        self._announcer = announcer
        self._observe = observe
        self._clock = clock
        self._follow: Callable[[], None] = lambda: None
        self._numbers = count()
        self._producers = 0  # That lived at the last look.
        self._valid: dict[str, SharesValid] = {}  # By environment, as it is now.
        self._held: PolicyAnnounced | None = None  # To be announced after the next look.
        self._lock = threading.Condition()
        self._thread = StepThread(self._step, "rollstream-admission")
        self._started = self._stopping = False

    def start(self, follow: Callable[[], None] = lambda: None) -> None:
        """Begins to look, each ``LOOK_EVERY_S``, or less often if there are many producers.
        ``follow``, called before each look, folds what was sealed where nobody else does.
        Idempotent."""
        if not self._started:
            self._started, self._follow = True, follow
            self._thread.wake()

    def announce(self, policy: PolicyAnnounced) -> None:
        """Has the newest policy written for all workers: at once, or after the next look where they
        were told no limit so far. Workers that knew a policy and no limit would begin groups
        without end if the sampler died before it wrote one."""
        with self._lock:
            self._held = policy
            if self._started and not self._stopping and not self._valid:
                self._thread.wake()
            else:
                self._announce_held(policy)

    def wait_announced(self, timeout_s: float) -> None:
        """Waits until the newest policy is written, where it can be now."""
        deadline = Deadline(timeout_s)
        with self._lock:
            self._lock.wait_for(lambda: self._held is None, timeout_s)
        self._announcer.wait_written(deadline.left_s())

    def look(self) -> None:
        """Has written what changed. Called by one thread at a time.

        Raises:
            BrokerUnavailable: it is not known what an earlier owner wrote.
        """
        seen = self._observe()
        if seen is not None:
            self._producers = sum(len(load.producers) for load in seen.loads.values())
            for environment in seen.loads if seen.valid_s > 0 else ():
                if not self._granting.knows(environment):
                    written = self._announcer.shares_written(environment)
                    self._granting.adopt(environment, written)
            lacking = {name for name in seen.loads if self._announcer.lacks(name)}
            now_s = self._clock.monotonic_s()
            self._put(self._granting.changes(seen, now_s, lacking))

    def close(self) -> None:
        """Says that the sampler leaves, unless another one owns its log. Idempotent."""
        if not self._started or self._stopping:
            return
        self._stopping = True
        self._thread.join(CLOSE_WAIT_S)
        self._announce_held(self._held)
        seen = self._observe()
        if seen is not None:
            self._put(self._granting.leave(seen))

    def _put(self, told: Iterable[Told]) -> None:
        for one in told:
            name = one.environment
            self._valid[name] = one.valid
            every_s = REPEAT_S if one.valid.valid_s > 0 else LEFT_REPEAT_S
            if one.at_once:
                self._announcer.put(name, "validity", partial(self._newest, name), every_s=every_s)
            if one.older is not None:
                older = partial(self._numbered, one.older)
                self._announcer.put(name, "shares", older, every_s=every_s)
            elif one.older_ends:
                self._announcer.stop(name, "shares")
                _log.info("no worker of an older release asked for groups of %r in a day", name)
            shares = {share.producer_id: self._encoded(share, one.valid) for share in one.shares}
            self._announcer.put_shares(name, shares)

    def _encoded(self, share: Written, valid: SharesValid) -> bytes | None:
        if share.total is None:
            return None
        number = next(self._numbers)
        return encode(
            ProducerShare(epoch=valid.epoch, number=number, total=share.total, needed=share.needed)
        )

    # Each time with another number: readers count the validity from then on.

    def _newest(self, environment: str) -> SharesValid:
        return replace(self._valid[environment], number=next(self._numbers))

    def _numbered(self, record: SharesGranted) -> SharesGranted:
        return replace(record, number=next(self._numbers))

    def _announce_held(self, policy: PolicyAnnounced | None) -> None:
        """Unless a newer one took its place, which waits for the next look."""
        with self._lock:
            if policy is not None and self._held is policy:
                self._held = None
                for environment in self._granting.environments:
                    self._announcer.put(environment, "policy", lambda: policy)
                self._lock.notify_all()

    def _step(self) -> float | None:
        if self._stopping:
            return None
        held = self._held  # The look sees the state that it belongs to.
        try:
            self._follow()
            self.look()
        except Fenced:
            return None
        except RollstreamError:
            pass  # The next call that decides meets it, and says so.
        except Exception:  # noqa: BLE001 - whatever it is, no trainer is to stop for it
            _log.exception("env workers are not told how many groups they may begin")
        finally:
            self._announce_held(held)
        return max(LOOK_EVERY_S, self._producers * LOOK_A_PRODUCER_S)
