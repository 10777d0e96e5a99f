"""What the ranks of a data-parallel trainer say to each other; a rank that died hangs nobody."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Self

import torch
import torch.distributed as dist

from examples.grpo_torch.errors import PeerLost


class Peers:
    """This rank among the others, over gloo. Each call ends within ``timeout_s``.

    Args:
        meeting_point: a file that all ranks of one start name, and that no earlier start did.

    Raises:
        PeerLost: here and at each call: another rank ended, or did not come.
    """

    def __init__(self, rank: int, ranks: int, meeting_point: Path, timeout_s: float) -> None:
        self.rank = rank
        self._timeout_s = timeout_s
        with self._lost("the other ranks' start"):
            dist.init_process_group(
                "gloo",
                init_method=meeting_point.as_uri(),
                rank=rank,
                world_size=ranks,
                timeout=timedelta(seconds=timeout_s),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        dist.destroy_process_group()

    def sum_gradients(self, model: torch.nn.Module, step: int) -> None:
        """The sum over all ranks, in place; the same bytes in each rank."""
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients]).cpu()
        with self._lost(f"the gradients of step {step}"):
            dist.all_reduce(flat)
        totals = flat.split([gradient.numel() for gradient in gradients])
        for gradient, total in zip(gradients, totals, strict=True):
            gradient.copy_(total.view_as(gradient))

    def step_of_rank_0(self, step: int) -> int:
        """The number that rank 0 gave."""
        said = torch.tensor([step])
        with self._lost("rank 0 to resume"):
            dist.broadcast(said, src=0)
        return int(said)

    @contextmanager
    def _lost(self, waited_for: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # All that torch.distributed raises of peers is one.
            # Without the place in gloo's sources, which stands first, and its advice.
            cause = str(error).splitlines()[0].rpartition("] ")[2].partition(". ")[0]
            raise PeerLost(self.rank, waited_for, self._timeout_s, cause) from error
