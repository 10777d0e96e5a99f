"""``python -m simulation.fold_version``, in ``tests/``: pins the sources of the sampler's fold, if
what was saved of it still holds. Golden logs that reach more of its branches are written first."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import coverage

import rollstream.folds
from harness.fold_version import FOLDED, PINNED, GoldenEvents, golden_runs, pin, state_beside
from harness.shaped_run import RUNS
from rollstream.streams.memory import MemoryBroker
from simulation.__main__ import processes
from simulation.worlds import WORLDS, begin_process

SEEDS = 40
SAMPLERS = {
    "sampler": "trainer-a",
    "uses": "trainer-a",
    "carrying": "trainer-a",
    "scores": "trainer-a",
    "admission": "first",
}
"""By world. That of snapshots has the logs of ``sampler``."""
SOURCES = Path(rollstream.folds.__file__).parent

Branch = tuple[str, int, int]


def reached(events: GoldenEvents) -> frozenset[Branch]:
    """The branches of the fold, by file, that these events come to, saved and read half-way.

    Raises:
        SystemExit: the state that was saved and gone on from is not that of all logs.
    """
    counted = coverage.Coverage(
        data_file=None, branch=True, include=[f"{SOURCES}/*"], config_file=False
    )
    with counted.collect():
        going_on = events.gone_on_from(events.half())
        whole = events.whole()
    if going_on.digest() != whole.digest():
        raise SystemExit("a state that was saved half-way is not gone on from to what all logs are")
    data = counted.get_data()
    return frozenset(
        (Path(file).name, *arc) for file in data.measured_files() for arc in data.arcs(file) or ()
    )


def simulated(name: str, seed: int) -> tuple[str, bytes, frozenset[Branch]]:
    """The logs of a seed, as bytes, and the branches that they reach."""
    world: Any = WORLDS[name](seed)
    world.run()
    config = world.config if name == "admission" else world._config
    events = GoldenEvents.read(SAMPLERS[name], config, MemoryBroker(world._logs))
    return f"{name}-{seed}", events.to_bytes(), reached(events)


def scripted(name: str) -> tuple[str, bytes, frozenset[Branch]]:
    """The same of a run that is not drawn."""
    with closing(RUNS[name]()) as world:
        events = GoldenEvents.read(world.name, world.config, world.broker())
    return name, events.to_bytes(), reached(events)


def reached_by_golden() -> frozenset[Branch]:
    """The branches that the golden logs reach.

    Raises:
        SystemExit: what was saved of them is not gone on from to what all of them are.
    """
    found = frozenset[Branch]()
    for path in golden_runs():
        events = GoldenEvents.from_bytes(path.read_bytes())
        going_on = events.gone_on_from(state_beside(path).read_bytes())
        if going_on.digest() != events.whole().digest():
            raise SystemExit(f"{path.name}: its state is not gone on from to what all logs are")
        found |= reached(events)
    return found


def lacking(known: frozenset[Branch]) -> Iterator[tuple[str, bytes]]:
    """The fewest simulated logs that reach, together, what all of them do and is not known."""
    seeds = [(name, seed) for name in SAMPLERS for seed in range(SEEDS)]
    with ProcessPoolExecutor(mp_context=processes(), initializer=begin_process) as pool:
        found = [*pool.map(scripted, RUNS), *pool.map(simulated, *zip(*seeds, strict=True))]
    while True:
        name, content, branches = max(found, key=lambda one: (len(one[2] - known), -len(one[1])))
        if branches <= known:
            return
        known |= branches
        yield name, content


def main() -> None:
    FOLDED.mkdir(exist_ok=True)
    for name, content in lacking(reached_by_golden()):
        path = FOLDED / f"{name}.json.xz"
        path.write_bytes(content)
        state_beside(path).write_bytes(GoldenEvents.from_bytes(content).half())
    PINNED.write_text(pin(), encoding="utf-8")


if __name__ == "__main__":
    main()
