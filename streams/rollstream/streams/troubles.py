"""What a sealer commits beside the offset of a partition: its claim, and what hinders it. Pure.

A sealer whose disk is full can write no file, and one that put a partition aside must not write to
its log. Its consumer group takes a few words all the same, and `status` reads them.
"""

from __future__ import annotations

from typing import NamedTuple

TEXT_BYTES_MAX = 2000  # Kafka takes 4,096 bytes.
PUT_ASIDE = "put aside: "  # How the trouble of a partition begins that its sealer put aside.


class CommitNote(NamedTuple):
    """The metadata of a commit.

    Attributes:
        claim: offset of a claim in the seal log, from which a fold may start; None: unknown.
        trouble: why nothing of the partition is sealed; empty: it is.
    """

    claim: int | None
    trouble: str = ""

    @property
    def aside(self) -> str:
        """Why the partition is put aside; empty: it is not."""
        return self.trouble.removeprefix(PUT_ASIDE) if self.trouble.startswith(PUT_ASIDE) else ""

    def metadata(self) -> str:
        """The text that is committed."""
        text = self.trouble.encode()[:TEXT_BYTES_MAX].decode(errors="ignore")
        return f"{-1 if self.claim is None else self.claim} {text}".rstrip()


def note_in(metadata: str) -> CommitNote:
    """What was committed; anything else, as of another program, says nothing."""
    claim, _, trouble = metadata.partition(" ")
    return CommitNote(int(claim) if claim.isdecimal() else None, trouble)
