"""The sources of the sampler's fold that its version stands for, and states that they saved.

``make fold-version`` pins the sources as they are now. Where they are others than those that are
pinned, do one of two things first:

- A fold comes to something else, or a state holds something else: count ``FOLD_VERSION`` up. The
  command then saves states for it.
- Nothing of that changes: leave it. The command runs the simulated worlds that compare a snapshot
  and what came after it with a fold of all logs, and goes on from the states that were saved under
  the version before the change; only if both hold it pins the sources.
"""

from __future__ import annotations

import base64
import json
import lzma
from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import xxhash

import rollstream.folds
import rollstream.schemas.events
import rollstream.streams.folds
from harness.events import GOLDEN
from harness.golden_decisions import codec_of
from rollstream.folds.choosing import choosing_of
from rollstream.folds.group.scored import Given
from rollstream.folds.saved_state import FOLD_VERSION, from_bytes, to_pieces
from rollstream.folds.state import SamplerState
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.codec import encode
from rollstream.schemas.events import Claimed, Scored
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.wire_schemas import shipped
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.owned.fold import FoldPlace, SavedFold
from rollstream.streams.owned.follow import ConfirmedEvent, Follower
from rollstream.streams.topics.layout import Layout

PINNED = GOLDEN / "fold.sources"
FOLDED = GOLDEN / f"fold.v{FOLD_VERSION}"
ROUNDS = 8  # In which what came after a saved state is folded, the logs in turn.
ROOT_ID = "golden"


def fold_sources() -> list[Path]:
    """The files of the code that folds, and that says which events count."""
    streams = Path(rollstream.streams.folds.__file__).parents[1]
    schemas = Path(rollstream.schemas.events.__file__).parents[1]
    sampler = Path(rollstream.folds.__file__).parent
    folders = (sampler, streams / "folds", streams / "owned", schemas)
    return [file for folder in folders for file in sorted(folder.rglob("*.py"))]


def pin() -> str:
    """The version, and a hash of its sources: what the file of golden bytes has."""
    sources = b"\0".join(file.read_bytes() for file in fold_sources())
    return f"{FOLD_VERSION} {xxhash.xxh3_128_hexdigest(sources)}\n"


def golden_runs() -> list[Path]:
    """The logs that this version folded."""
    return sorted(FOLDED.glob("*.json.xz"))


def state_beside(path: Path) -> Path:
    """Where the state lies that this version saved half-way through those logs."""
    return path.with_name(path.name.replace(".json.xz", ".state"))


class GoldenEvents:
    """What counts in a sampler's logs.

    Args:
        decisions: of its decision log.
        sealed: of the logs of groups and of scores.
    """

    def __init__(
        self,
        sampler: str,
        config: RollstreamConfig,
        decisions: Sequence[ConfirmedEvent],
        sealed: Sequence[ConfirmedEvent],
    ) -> None:
        self._sampler, self._config = sampler, config
        layout = Layout.of(config.kafka)
        self._addresses = [
            PartitionAddress(name, 1, number)
            for name, section in sorted(config.environments.items())
            for number in range(section.partitions)
        ]
        self._groups = {layout.groups_log(log): log for log in self._addresses}
        self._scores = {layout.scores_log(log): log for log in self._addresses}
        self._decisions, self._sealed = decisions, sealed
        self._identity = {"sampler": sampler, "log": ROOT_ID, "root_id": ROOT_ID}

    @classmethod
    def read(cls, sampler: str, config: RollstreamConfig, broker: Broker) -> GoldenEvents:
        """Those of a broker's logs."""
        found = cls(sampler, config, (), ())
        found._decisions = _events(broker, [Layout.of(config.kafka).sampler_log(sampler)])
        found._sealed = _events(broker, [*found._groups, *found._scores], found._scores)
        return found

    @classmethod
    def from_bytes(cls, content: bytes) -> GoldenEvents:
        stored = json.loads(lzma.decompress(content))
        codec = codec_of(stored["schemas"])
        decisions, sealed = (
            [
                ConfirmedEvent(
                    TopicPartition(topic, partition),
                    offset,
                    timestamp_us,
                    codec.decode(base64.b64decode(value)),
                )
                for topic, partition, offset, timestamp_us, value in stored[kind]
            ]
            for kind in ("decisions", "sealed")
        )
        config = RollstreamConfig.model_validate(stored["config"])
        return cls(stored["sampler"], config, decisions, sealed)

    def to_bytes(self) -> bytes:
        """With the schemas that the events were written under: until a release these change in
        place."""
        values = [encode(one.event) for one in (*self._decisions, *self._sealed)]
        schemas = {schema.name: schema.source for schema in map(shipped().schema_of, values)}
        stored: dict[str, Any] = {
            "sampler": self._sampler,
            "config": self._config.model_dump(mode="json", exclude_defaults=True),
            "schemas": schemas,
            "decisions": list(map(_stored, self._decisions)),
            "sealed": list(map(_stored, self._sealed)),
        }
        return lzma.compress(json.dumps(stored, sort_keys=True).encode())

    def whole(self) -> SamplerState:
        """The state of all of them."""
        return self._apply(self._empty(), self._decisions, self._sealed)

    def half(self) -> bytes:
        """The saved state of the first ones of each log."""
        state = self._apply(self._empty(), *self._halves(0))
        place = FoldPlace(1, b"golden", (0, Claimed(owner="a", nonce="n", root_id=ROOT_ID)), (0,))
        return b"".join(to_pieces(SavedFold(state, place), self._identity))

    def gone_on_from(self, data: bytes) -> SamplerState:
        """The state that was saved after the first ones, with the others."""
        state = from_bytes(data, self._identity, self._empty()).fold
        decisions, sealed = self._halves(1)
        for k in range(ROUNDS):
            self._apply(state, *(_part(events, k, ROUNDS) for events in (decisions, sealed)))
        return state

    def _empty(self) -> SamplerState:
        section = self._config.samplers[self._sampler]
        choosing = choosing_of(section, self._config.environments)
        return SamplerState(self._sampler, choosing, self._addresses)

    def _apply(
        self,
        state: SamplerState,
        decisions: Sequence[ConfirmedEvent],
        sealed: Sequence[ConfirmedEvent],
    ) -> SamplerState:
        for where, offset, timestamp_us, event in sealed:
            if isinstance(event, Scored):
                state.apply_scores(self._scores[where], offset, Given(event, timestamp_us))
            else:
                state.apply_groups(self._groups[where], offset, event, timestamp_us)
        for one in decisions:
            state.apply(one.offset, one.timestamp_us, one.event)
        return state

    def _halves(self, which: int) -> tuple[Sequence[ConfirmedEvent], Sequence[ConfirmedEvent]]:
        return _part(self._decisions, which, 2), _part(self._sealed, which, 2)


def _part(events: Sequence[ConfirmedEvent], k: int, parts: int) -> Sequence[ConfirmedEvent]:
    return events[len(events) * k // parts : len(events) * (k + 1) // parts]


def _stored(one: ConfirmedEvent) -> list[object]:
    value = base64.b64encode(encode(one.event)).decode()
    return [*one.where, one.offset, one.timestamp_us, value]


def _events(
    broker: Broker, logs: Collection[TopicPartition], scores: Collection[TopicPartition] = ()
) -> list[ConfirmedEvent]:
    present = broker.admin().describe([where.topic for where in logs], 30.0)
    starts = {where: 0 for where in logs if where.topic in present}
    with closing(Follower(broker, starts, [*starts.keys() & {*scores}])) as follower:
        return list(follower.read_to_end(Deadline(30.0)))
