"""What a partition of a sealer does next."""

from __future__ import annotations

from enum import Enum, auto


class State(Enum):
    """What a partition does next. Records are read in every state, once the first claim succeeded.

    ::

        CLAIMING → PROJECTING → READING ⇄ FLUSHING
        PROJECTING → FLUSHING            the flush in doubt is not in the log, so it is made again
        READING → CLAIMING               every so often, to keep the log short to adopt
        any → CLAIMING                   a claim or an append is in doubt
        any → ASIDE                      a log of it cannot be read on
        any → ASKING_GROUP               fenced
        ASKING_GROUP → CLAIMING          by a zombie
        ASKING_GROUP → RELINQUISHED      by a new owner
        any → REVOKED                    the group took the partition away
        ASIDE → TRYING_AGAIN             somebody asked for it
    """

    CLAIMING = auto()  # The seal log has to be claimed.
    PROJECTING = auto()  # The log is claimed; manifests may be missing.
    READING = auto()  # No flush is on its way; the next one begins when it is due.
    FLUSHING = auto()  # A flush is on its way.
    ASKING_GROUP = auto()  # Fenced: is the partition still this sealer's? The group knows.
    ASIDE = auto()  # Nothing is read or written any more; others' requests are looked for.
    RELINQUISHED = auto()  # The group assigned the partition to another sealer.
    TRYING_AGAIN = auto()  # It is begun anew, as by a sealer that starts.
    REVOKED = auto()  # Nothing new is begun; what a running job commits still counts.


CLAIM_STATES = (State.CLAIMING, State.PROJECTING)
FINAL_STATES = frozenset((State.RELINQUISHED, State.TRYING_AGAIN, State.REVOKED))
STOPPED_STATES = FINAL_STATES | {State.ASIDE}
