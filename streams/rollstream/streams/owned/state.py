"""What the owner of a log may do."""

from __future__ import annotations

from enum import Enum, auto


class State(Enum):
    """What this owner may do. Every change goes through ``OwnedLog._enter``.

    - UNCLAIMED to IN_DOUBT: a claim begins.
    - IN_DOUBT or FENCED to OWNER: the claim was read back, and its ``Adopted`` is confirmed.
    - OWNER to IN_DOUBT: a claim begins, or the outcome of an append is not known.
    - any to FENCED: the claim of another owner was read after ours.
    - OWNER or IN_DOUBT to UNCLAIMED: it was released.
    - any to LOST: the log does not hold what was folded of it. It stays so.
    """

    UNCLAIMED = auto()  # Never claimed, or released.
    IN_DOUBT = auto()  # Only the log can tell what counts: claim again.
    OWNER = auto()
    FENCED = auto()  # Somebody else's claim is newer; the next claim folds the log anew.
    LOST = auto()  # Whatever were written now would be decided from what is in no log.
