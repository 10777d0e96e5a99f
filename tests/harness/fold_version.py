"""The sources of the sampler's fold that its version stands for, and a state that they saved.

``make fold-version`` pins the sources as they are now. Where they are others than those that are
pinned, do one of two things first:

- A fold comes to something else, or a state holds something else: count ``FOLD_VERSION`` up. The
  command then saves a state for it.
- Nothing of that changes: leave it. The command runs the simulated worlds that compare a snapshot
  and what came after it with a fold of all logs, and goes on from the state that was saved under
  the version before the change; only if both hold it pins the sources.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import xxhash

import rollstream.schemas.events
import rollstream.streams.folds
from harness.decider import LOGS
from harness.events import GOLDEN
from harness.golden_decisions import SAMPLER, config, golden_logs
from harness.golden_decisions import from_bytes as logs_from_bytes
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Claimed
from rollstream.streams.broker import TopicPartition
from rollstream.streams.folds.sampler.choosing import choosing_of
from rollstream.streams.folds.sampler.saved_state import FOLD_VERSION, from_bytes, to_pieces
from rollstream.streams.folds.sampler.state import SamplerState
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.owned.fold import FoldPlace, SavedFold
from rollstream.streams.owned.follow import ConfirmedEvent, Follower
from rollstream.streams.topics.layout import Layout

LOGS_FOLDED = 4  # The golden logs of this algorithm; what later ones hold is folded alike.
PINNED = GOLDEN / "fold.sources"
IDENTITY = {"sampler": SAMPLER, "log": "golden", "root_id": "golden"}
PLACE = FoldPlace(1, b"golden", (0, Claimed(owner="a", nonce="n", root_id="golden")), (0,))


def fold_sources() -> list[Path]:
    """The files of the code that folds, and that says which events count."""
    streams = Path(rollstream.streams.folds.__file__).parents[1]
    schemas = Path(rollstream.schemas.events.__file__).parents[1]
    folders = (streams / "folds", streams / "owned", schemas)
    return [file for folder in folders for file in sorted(folder.rglob("*.py"))]


def pin() -> str:
    """The version, and a hash of its sources: what the file of golden bytes has."""
    sources = b"\0".join(file.read_bytes() for file in fold_sources())
    return f"{FOLD_VERSION} {xxhash.xxh3_128_hexdigest(sources)}\n"


def saved_state() -> Path:
    """Where the state lies that this version saved."""
    return GOLDEN / f"snapshot.fold-{FOLD_VERSION}.bin"


def empty_state() -> SamplerState:
    """One that folded nothing."""
    settings = config()
    return SamplerState(
        SAMPLER, choosing_of(settings.samplers[SAMPLER], settings.environments), LOGS
    )


class GoldenEvents:
    """What counts in the golden logs: of the decision log, and of the seal logs."""

    def __init__(self) -> None:
        settings = config()
        layout = Layout.of(settings.kafka)
        broker = MemoryBroker(logs_from_bytes(golden_logs(LOGS_FOLDED).read_bytes()))
        self._logs = {layout.groups_log(log): log for log in LOGS}
        self.decisions = _events(broker, [layout.sampler_log(SAMPLER)])
        self.sealed = _events(broker, [*self._logs])

    def apply(self, state: SamplerState, decisions: slice, sealed: slice) -> SamplerState:
        """The state with these events folded, too."""
        for one in self.decisions[decisions]:
            state.apply(one.offset, one.timestamp_us, one.event)
        for one in self.sealed[sealed]:
            state.apply_groups(self._logs[one.where], one.offset, one.event, one.timestamp_us)
        return state

    def whole(self) -> SamplerState:
        """The state of all of them."""
        return self.apply(empty_state(), slice(None), slice(None))

    def half(self) -> SamplerState:
        """That of the first ones of each log."""
        return self.apply(empty_state(), *self._cut(first=True))

    def gone_on_from(self, data: bytes) -> SamplerState:
        """The state that was saved after the first ones, with the others."""
        state = from_bytes(data, IDENTITY, empty_state()).fold
        return self.apply(state, *self._cut(first=False))

    def _cut(self, *, first: bool) -> tuple[slice, slice]:
        cuts = len(self.decisions) // 2, len(self.sealed) // 2
        decisions, sealed = (slice(cut) if first else slice(cut, None) for cut in cuts)
        return decisions, sealed


def _events(broker: MemoryBroker, logs: list[TopicPartition]) -> list[ConfirmedEvent]:
    with closing(Follower(broker, dict.fromkeys(logs, 0))) as follower:
        return list(follower.read_to_end(Deadline(30.0)))


def main() -> None:
    events, path = GoldenEvents(), saved_state()
    if not path.exists():
        path.write_bytes(b"".join(to_pieces(SavedFold(events.half(), PLACE), IDENTITY)))
    if events.gone_on_from(path.read_bytes()).digest() != events.whole().digest():
        raise SystemExit(f"{path.name} and what came after it is not what all logs are folded to")
    PINNED.write_text(pin(), encoding="utf-8")


if __name__ == "__main__":
    main()
