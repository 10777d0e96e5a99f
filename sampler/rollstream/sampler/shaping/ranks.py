"""Data-parallel shares of the one recorded batch. Pure.

The rule: slot ``p`` of the batch goes to rank ``p mod dp_size``. So groups stay whole, every group
goes to exactly one rank, the remainder goes to the lowest ranks, and a batch of a fixed size is cut
the same way however often it is asked for. Peers in tensor, pipeline or context parallel groups
pass the same rank and get the same bytes.
"""

from __future__ import annotations


def share(num_groups: int, dp_rank: int, dp_size: int) -> range:
    """The slots that belong to a rank; empty where there are more ranks than groups."""
    assert 0 <= dp_rank < dp_size
    return range(dp_rank, num_groups, dp_size)
