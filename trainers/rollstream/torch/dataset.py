"""``RolloutDataset``: the batches of a sampler as an iterable of PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from multiprocessing.context import get_spawning_popen
from os import getpid
from typing import Any, SupportsIndex

from torch.utils.data import IterableDataset, get_worker_info

from rollstream.folds.group.eligible import Accept
from rollstream.sampler import Batch, InvalidRequest, SamplerApi
from rollstream.sampler.arguments import at_least, whole_number
from rollstream.sampler.decide.batches.next_batch import PayloadsBy
from rollstream.sampler.training.given_sampler import a_sampler
from rollstream.torch.transport import share_memory_of_batches

_OPENED_THERE = (
    "as its sampler give RolloutDataset what opens one there: "
    "functools.partial(SamplerClient.attach, 'trainer-a', config='rollstream.toml')"
)


class RolloutDataset(IterableDataset[Any]):
    """The batches of a sampler, or a rank's shares of them, from ``first_step`` on.

    The same steps give the same bytes, whoever iterates and however often. It decides nothing but
    which step comes next: ``resume``, ``ack`` and ``checkpointed`` are the trainer's, through a
    client of its own. It is for a ``DataLoader`` with ``batch_size=None``, since a batch is one
    item:

    - ``num_workers=0``: a step is asked for when the loop asks for it.
    - ``num_workers=1, multiprocessing_context="spawn"``: another process asks ahead, by
      ``prefetch_factor`` steps (2, unless it is set), and hands batches over in shared memory. So
      batches are decided that much earlier, when newer groups have not come yet: those steps of lag
      are the price. Steps are decided one after the other, so more workers have nothing to do and
      are refused; and so is a worker that was forked, since threads of Ray and Kafka end in a fork.

    Ranks each have a dataset; every rank gives the same ``first_step`` and ``num_groups``.
    ``torchdata``'s ``StatefulDataLoader`` finds ``state_dict`` and ``load_state_dict``; nobody else
    needs them, since ``first_step`` is all the state that there is.

    Args:
        sampler: that is asked, which stays open; or what opens one, in the process that iterates,
            which is closed when the iteration ends. A worker needs the latter, and it must be
            picklable: ``functools.partial(SamplerClient.attach, "trainer-a", config="…")``.
        first_step: what ``resume`` returned.
        steps: how many; None: without end.
        num_groups: as ``next_batch`` has it, and likewise every argument that is not named here.
        shape: makes the item of the batch, in the process that iterates; None: the batch is it.

    Raises:
        InvalidRequest: what is no sampler and opens none; ``steps`` below 0; a worker
            is refused, while it is iterated.
        ForkedSampler: a process that was forked off the one that opened the sampler iterates it.
        SamplerError: as ``next_batch``, while it is iterated. Out of a worker PyTorch raises an
            error as its own type where that is made of a text alone, else as ``RuntimeError`` with
            its text.

    Examples:
        >>> step = sampler.resume(None)                                     # doctest: +SKIP
        >>> dataset = RolloutDataset(sampler, first_step=step, num_groups=64,
        ...                          dp_rank=rank, dp_size=ranks)           # doctest: +SKIP
        >>> for batch in DataLoader(dataset, batch_size=None):              # doctest: +SKIP
        ...     train(batch.to_torch())
        ...     sampler.ack(batch)
    """

    def __init__(
        self,
        sampler: SamplerApi | Callable[[], SamplerApi],
        *,
        first_step: SupportsIndex,
        num_groups: SupportsIndex,
        steps: SupportsIndex | None = None,
        timeout_s: float | None = None,
        dp_rank: SupportsIndex = 0,
        dp_size: SupportsIndex = 1,
        accept: Accept | None = None,
        mix: Mapping[str, float] | None = None,
        columns: Sequence[str] = (),
        payloads: PayloadsBy = "sampler",
        shape: Callable[[Batch], Any] | None = None,
    ) -> None:
        self._sampler = sampler if callable(sampler) else a_sampler(sampler)
        self._first_step = self._next_step = whole_number("first_step", first_step)
        self._end = None if steps is None else self._first_step + at_least("steps", steps, 0)
        self._num_groups = whole_number("num_groups", num_groups)
        self._request: dict[str, Any] = {
            "timeout_s": timeout_s,
            "dp_rank": dp_rank,
            "dp_size": dp_size,
            "accept": accept,
            "mix": mix,
            "columns": columns,
            "payloads": payloads,
        }
        self._shape = shape
        self._made_by = getpid()

    def __getstate__(self) -> dict[str, Any]:
        """For a worker that was spawned, which needs what opens a sampler."""
        if get_spawning_popen() is not None and not callable(self._sampler):
            raise InvalidRequest(
                f"a worker of the DataLoader cannot have {self._sampler!r:.200}, which is open in "
                f"this process; {_OPENED_THERE}"
            )
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Here it is made, in the worker: a fork of this process is none of its own."""
        self.__dict__.update(state, _made_by=getpid())

    def __iter__(self) -> Iterator[Any]:
        """Begins at ``first_step``, or where ``load_state_dict`` set it."""
        worker = get_worker_info()
        if worker is not None:
            _refuse_unless_it_can_ask(worker.num_workers, forked=self._made_by != getpid())
            share_memory_of_batches()
        with ExitStack() as until_the_end:
            sampler = self._sampler
            if not isinstance(sampler, SamplerApi):
                sampler = sampler()
                until_the_end.callback(sampler.close)
            for step in count(self._first_step):
                if self._end is not None and step >= self._end:
                    return
                batch = sampler.next_batch(step, self._num_groups, **self._request)
                self._next_step = step + 1
                yield batch if self._shape is None else self._shape(batch)

    def state_dict(self) -> dict[str, int]:
        """The step after the last that this process was given."""
        return {"step": self._next_step}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Iterations begin at that step from now on; the end stays where it was."""
        self._first_step = self._next_step = whole_number("step", state["step"])


def _refuse_unless_it_can_ask(num_workers: int, *, forked: bool) -> None:
    if num_workers > 1:
        raise InvalidRequest(
            f"num_workers is {num_workers}, and a sampler's steps are decided one after the other; "
            "give DataLoader num_workers=1, which asks ahead, or 0"
        )
    if forked:
        raise InvalidRequest(
            "the worker of the DataLoader was forked, and threads of Ray and Kafka end in a fork; "
            f"give DataLoader multiprocessing_context='spawn', and {_OPENED_THERE}"
        )
