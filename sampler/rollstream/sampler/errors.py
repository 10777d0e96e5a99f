"""Every error that a sampler raises."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from rollstream.schemas.errors import RollstreamError
from rollstream.store.errors import StoreAway


class SamplerError(RollstreamError):
    """The sampler refused a call, or did not answer."""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        """It crosses from the actor to the trainer, and pickle by itself passes no keywords."""
        return partial(type(self), **vars(self)), (str(self),)


class NotEnoughGroups(SamplerError, TimeoutError):
    """The groups for a batch did not arrive in time. Asking again for the same step may help.

    Attributes:
        step: that was asked for.
        wanted: number of groups that the request needs.
        ready: number of groups that could be served, by environment.
        waiting: number of groups that are sealed but cannot be served now, by the reason; ``eval``
            groups never can.
        dropped: number of groups that will never be served, by the reason.
    """

    def __init__(
        self,
        message: str,
        *,
        step: int,
        wanted: int,
        ready: Mapping[str, int],
        waiting: Mapping[str, int],
        dropped: Mapping[str, int],
    ) -> None:
        super().__init__(message)
        self.step = step
        self.wanted = wanted
        self.ready = dict(ready)
        self.waiting = dict(waiting)
        self.dropped = dict(dropped)


class InvalidRequest(SamplerError, ValueError):
    """An argument makes no sense. The message names it, its value and what to give."""


class RequestDiffers(SamplerError, ValueError):
    """The call was made before with other arguments, and the recorded one stands."""


class MakerDiffers(SamplerError, ValueError):
    """A batch maker made another batch of a step than before, so it is not deterministic."""


class UnknownStep(SamplerError, LookupError):
    """The step has not been served, is not the next one, or is no longer held."""


class CarryLost(UnknownStep):
    """Groups that the step before kept are not there any more, since a resume went back behind what
    was final. You may ask for the step with ``carried=()``.
    """


class CarryNeeded(UnknownStep):
    """The step was not served, and ``carried`` is not given, or is of another batch than the step
    before has. ``TrainingBatches`` and ``ReadyPacks`` look at that one, and ask again.

    Attributes:
        batch_id: of the step before; empty: its batch is not held.
        request: that it was served for, as JSON.
        final: whether the trainer's checkpoint holds it.
    """

    def __init__(self, message: str, *, batch_id: str, request: str, final: bool) -> None:
        super().__init__(message)
        self.batch_id = batch_id
        self.request = request
        self.final = final


class UnknownRollout(SamplerError, LookupError):
    """No log has a rollout of this uid."""


class DecidedByNewer(SamplerError):
    """A newer version of Rollstream decided by rules that this one does not know. The message names
    it.
    """


class DecidedByOlder(SamplerError):
    """An older version of Rollstream decided by rules that this one no longer has. The message
    names it.
    """


class GroupsUnreadable(SamplerError):
    """Files of a batch's groups are missing or damaged, and a share of it may have been handed out,
    or ``on_unreadable`` is ``stop``. Every rank gets the same error.

    Attributes:
        step: of the batch.
        digest: of the batch.
        groups: slot of the recorded batch to group id, of groups that cannot be read.
        finding: which groups, and why, without what to do.
        reasons: slot to why its own file cannot be read, as far as that is known.
    """

    def __init__(
        self,
        message: str,
        *,
        step: int,
        digest: bytes,
        groups: Mapping[int, str],
        finding: str = "",
        reasons: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(message)
        self.finding = finding or message
        self.step = step
        self.digest = digest
        self.groups = dict(groups)
        self.reasons = dict(reasons)


class BatchUnsettled(SamplerError, StoreAway):
    """Whether groups of the batch that cannot be read give way is being settled. The call is
    repeated until its time is up.
    """


class ArraysDiffer(SamplerError, ValueError):
    """Groups of the batch have an array of this name with different dtypes or trailing shapes."""


class ArrayMissing(SamplerError, KeyError):
    """No group of the batch has an array of this name, or it was not asked for."""

    __str__ = Exception.__str__  # Not the representation of the text, as of other keys.


class TooManyOpenBatches(SamplerError):
    """``max_open_batches`` served batches are not final yet; call ``checkpointed``."""


class ForkedSampler(SamplerError):
    """The sampler was opened before this process was forked off; open one in each process."""


class SamplerUnavailable(SamplerError, TimeoutError):
    """The sampler's actor did not answer within the deadline."""


class RowsOutOfReach(SamplerError):
    """The batch was copied out of the process that could read its rows."""


class ConfigurationDiffers(SamplerError, ValueError):
    """The sampler's actor runs with another configuration.

    Attributes:
        key: the first key that differs, as ``samplers.trainer-a.seed``.
        running: its value there.
        given: its value here.
    """

    def __init__(self, message: str, *, key: str, running: object, given: object) -> None:
        super().__init__(message)
        self.key = key
        self.running = running
        self.given = given


class UnknownSampler(SamplerError, LookupError):
    """The configuration has no section for that sampler. From ``history``: it has no decision log,
    or no decisions among the files.
    """
