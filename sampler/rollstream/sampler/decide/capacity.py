"""How many ready groups each environment may have. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice

from rollstream.folds.batches.served import ServedBatch
from rollstream.folds.state import SamplerState
from rollstream.schemas.choosing import Choosing

BATCHES_COUNTED = 8  # That say what is used of each environment.


def capacities(state: SamplerState) -> dict[str, int]:
    """The most ready groups of each environment; empty where only their sum is bounded.

    Several environments have ``capacity`` times their number together: half of ``capacity`` each,
    so that none that was not served lately is left without, and the rest by the groups that the
    last 8 batches had of each; before the first batch, equally.
    """
    choosing, capacity = state.choosing, state.choosing.capacity
    if capacity is None:
        return {}
    names = choosing.names()
    served = by_environment(last_batches(state))
    total = sum(served[name] for name in names)
    if len(names) == 1 or not total:
        return dict.fromkeys(names, capacity)
    least = least_capacity(choosing, capacity)
    rest = (capacity - least) * len(names)
    return {name: least + rest * served[name] // total for name in names}


def last_batches(state: SamplerState) -> list[ServedBatch]:
    """Those that say what is used of each environment, the newest first."""
    return list(islice(reversed(state.batches.values()), BATCHES_COUNTED))


def by_environment(batches: Iterable[ServedBatch]) -> Counter[str]:
    """Groups that were chosen for these batches."""
    return Counter(ref.environment for batch in batches for ref in batch.refs)


def least_capacity(choosing: Choosing, capacity: int) -> int:
    """What an environment has at least, whatever was served."""
    return capacity if len(choosing.environments) == 1 else (capacity + 1) // 2
