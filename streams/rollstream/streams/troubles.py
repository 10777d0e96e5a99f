"""What a sealer commits beside the offset of a partition: its claim, and what hinders it. Pure.

A sealer whose disk is full can write no file, and one that put a partition aside must not write to
its log. Its consumer group takes a few words all the same, and `status` reads them.
"""

from __future__ import annotations

from typing import NamedTuple

TEXT_BYTES_MAX = 2000  # Kafka takes 4,096 bytes.
PUT_ASIDE = "put aside: "  # How the trouble of a partition begins that its sealer put aside.
BESIDE = "beside sealing: "  # How it begins where sealing goes on.
CLOCK_OFF_S = 30.0  # An answer of the broker may be as late: less is no wrong clock.
CLOCK = "its machine's clock is "


class CommitNote(NamedTuple):
    """The metadata of a commit.

    Attributes:
        claim: offset of a claim in the seal log, from which a fold may start; None: unknown.
        trouble: why nothing of the partition is sealed, or what fails ``BESIDE``; empty: nothing.
    """

    claim: int | None
    trouble: str = ""

    @property
    def aside(self) -> str:
        """Why the partition is put aside; empty: it is not."""
        return self._behind(PUT_ASIDE)

    @property
    def beside(self) -> str:
        """What fails while sealing goes on; empty: nothing."""
        return self._behind(BESIDE)

    def _behind(self, prefix: str) -> str:
        return self.trouble.removeprefix(prefix) if self.trouble.startswith(prefix) else ""

    def metadata(self) -> str:
        """The text that is committed."""
        text = self.trouble.encode()[:TEXT_BYTES_MAX].decode(errors="ignore")
        return f"{-1 if self.claim is None else self.claim} {text}".rstrip()


def note_in(metadata: str) -> CommitNote:
    """What was committed; anything else, as of another program, says nothing."""
    claim, _, trouble = metadata.partition(" ")
    return CommitNote(int(claim) if claim.isdecimal() else None, trouble)


def wrong_clock(ahead_s: float) -> str:
    """Returns what is wrong with a machine's clock that is so far ahead; empty: nothing."""
    if abs(ahead_s) < CLOCK_OFF_S:
        return ""
    way = "ahead of" if ahead_s > 0 else "behind"
    return (
        f"{CLOCK}about {abs(round(ahead_s, -1)):.0f} s {way} the brokers', or a broker's is wrong. "
        "It decides by the brokers' clock all the same. Keep clocks with NTP"
    )
