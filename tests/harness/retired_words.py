"""Words and names that are not used any more, and what is used instead."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

HERE = Path(__file__)
BETWEEN = "->"  # A retired pattern, and what is written instead.
PATTERNS = r"""
(?<![A-Za-z])[Hh]ear(d|s)?(?![A-Za-z])  ->  confirmed, to confirm
(?<![A-Za-z])[Oo]vertaken(?![A-Za-z])  ->  fenced
(?<![A-Za-z])[Rr]eigns?(?![A-Za-z])  ->  current claim
(?<![A-Za-z])(?i:patience)(?![A-Za-z])  ->  backoff
\bon_gone\b  ->  on_revoked
\blet_go\b  ->  relinquished
\b_without_doubt\b  ->  ask the log
(?<![A-Za-z])([Dd]oors?|\w*Doors?)(?![A-Za-z])  ->  public API, client
(?<![A-Za-z])[Hh]ouse(?![A-Za-z])  ->  packages
\brooms\b|\b(a|each|every|this|other) room\b  ->  package
\b(lower|same|one|each) floors?\b  ->  layer
\b[Tt]he word (that|about|if|was)\b|\b_add_word\b  ->  control event
(?<![A-Za-z])[Tt]ally(?![A-Za-z])  ->  counters
\bnth\b  ->  index
\bLogId\b|\bclass Ref\b  ->  PartitionAddress, GroupRef
\bclass (Members|Sealed|SealLog)\b  ->  SealedSegments, ConfirmedEvent, EventAppender
\b(is|was) unheard\b|\bcatch_up\b  ->  not confirmed, read_to_end
\b_?Place\b  ->  slot in a batch, address of a partition
\bpolicy: (EnvironmentConfig|SamplerConfig)\b  ->  config
\bShop\b  ->  SealerContext
\bOutside\b(?! [a-z])  ->  Services
\bDraws\b(?! [a-z`])  ->  SamplerConfig
\bclass Shape\b|\bshape_of\b  ->  EventConverter
\b_?STEADY\b|\bsteady: |\bself\._steady\b  ->  memoised
\bTidy\b  ->  evict_over_capacity
\b_shed\b  ->  _expire_over_limit
\b_take_(in|own|gap)\b  ->  apply_record, apply, _read_gap
\b(_add_)?note\b(?=\()|\bself\._notes?\b  ->  settlement
\bonce=(True|False)\b  ->  retries=
\bdata's way\b  ->  how data flows
\bIs it well\b  ->  watching it
"""


@cache
def retired() -> tuple[re.Pattern[str], ...]:
    """The patterns of the block above."""
    lines = [line for line in PATTERNS.splitlines() if line.strip()]
    return tuple(re.compile(line.split(BETWEEN)[0].strip()) for line in lines)


def uses(text: str, where: str) -> list[str]:
    """One line for each retired word in the text."""
    return [
        f"{where}:{number}: {match.group()!r} in {line.strip()!r}"
        for number, line in enumerate(text.splitlines(), start=1)
        for pattern in retired()
        if (match := pattern.search(line)) is not None
    ]
