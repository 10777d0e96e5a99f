"""A deployment whose sampler trains on what was sealed, and whose files are retired."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from harness.entropy import SeededEntropy
from harness.retiring import requested
from harness.sealing import TIMEOUT_S, SealWorld
from rollstream.consumers import Sealer, audit
from rollstream.consumers.retention.owner import DELETE_EVERY_S
from rollstream.consumers.sealing.flush_requests import LOOK_EVERY_S
from rollstream.sampler import Batch, Sampler
from rollstream.schemas import codec
from rollstream.schemas.events import Retired
from rollstream.store import visible_files
from rollstream.streams.topics.specs import specs_for

NAME = "trainer-a"


class RetentionWorld(SealWorld):
    """Groups of 2, and each flush holds one group: a file a group."""

    def __init__(self, *, samplers: Sequence[str] = (NAME,), **config: Any) -> None:
        super().__init__(**{"samplers": samplers, "max_flush_rollouts": 2, **config})

    def seal_groups(
        self, first: int, count: int, *, sealer: Sealer | None = None, **fields: Any
    ) -> list[str]:
        """Seals so many groups; returns their uids."""
        uids = []
        for number in range(first, first + count):
            for member in range(2):
                uids.append(f"g{number}-{member}")
                self.publish(
                    uids[-1],
                    group_uid=f"group-{number}",
                    group_size=2,
                    example_id=f"ex-{number}",
                    **fields,
                )
        if sealer is not None:
            self.until(sealer)
            return uids
        with self.leaving(self.sealer()) as own:
            self.until(own)
        return uids

    @contextlib.contextmanager
    def leaving(self, sealer: Sealer) -> Any:
        """The sealer, which leaves at the end."""
        try:
            yield sealer
        finally:
            sealer.close()

    def register(self, name: str) -> None:
        """One more sampler that draws from the environment, from the next process on."""
        samplers = {**self.config.samplers, name: self.sampler_section()}
        self.config = self.config.model_copy(update={"samplers": samplers})
        specs = [spec for spec in specs_for(self.layout, {}, [name]) if name in spec.name]
        self.broker.admin().create(specs, TIMEOUT_S)

    def sampler(self, name: str = NAME, seed: int = 1) -> Sampler:
        return Sampler(
            name,
            config=self.config,
            broker=self.new_broker(),
            store=self.blobs,
            clock=self.clock,
            entropy=SeededEntropy(seed),
        )

    def ask(self, older_than_s: float | None = 0.0, *, kind: str = "retain", **more: Any) -> None:
        """A request in every partition."""
        writer = self.broker.writer(linger_ms=0.0)
        value = codec.encode(requested(older_than_s, kind=kind, **more))
        for partition in range(self.environment.partitions):
            writer.append(self.layout.groups("math"), value, partition=partition)
        assert writer.flush(TIMEOUT_S) == 0

    def retain(self, *sealers: Sealer, sampler: Sampler | None = None) -> None:
        """Sealers for as long as they need to notice a request, retire and delete, while the
        sampler is asked for its figures now and then."""
        for _ in range(3):
            self.run(*sealers, seconds=LOOK_EVERY_S + DELETE_EVERY_S)
            if sampler is not None:
                sampler.stats()

    def sealed_files(self) -> list[str]:
        """All that were ever named."""
        return sorted(file.path for event in self.flushes() for file in event.files)

    def retired_files(self) -> list[str]:
        """By the events that count."""
        events = [confirmed.event for confirmed in self.confirmed_events()]
        return sorted(
            file.path for event in events if isinstance(event, Retired) for file in event.files
        )

    def answers(self) -> list[Retired]:
        """To requests, in the order of partitions."""
        events = [(one.where, one.event) for one in self.confirmed_events()]
        return [e for _, e in sorted(events, key=lambda one: one[0]) if isinstance(e, Retired)]

    def files_on_disk(self) -> list[str]:
        return sorted(blob.path for blob in self.blobs.list("groups/"))

    def paths_of(self, batch: Batch) -> list[str]:
        """The files of a batch's groups, sorted."""
        uids = {*batch.uids}
        return sorted(
            event.files[group.file].path
            for event in self.flushes()
            for group in event.groups
            if uids & {*event.segments.uids}  # A flush has one group.
        )

    def problems(self) -> list[str]:
        """The audit's, and files that readers see wrongly."""
        report = audit(
            self.config, broker=self.broker, store=self.blobs, clock=self.clock, digests=True
        )
        problems = list(report.problems)
        retired = Counter(self.retired_files())
        problems += [f"{path} was retired twice" for path, n in retired.items() if n > 1]
        wanted = sorted({*self.sealed_files()} - {*retired})
        if (seen := sorted(visible_files(self.blobs))) != wanted:
            problems.append(f"readers see {seen}, not {wanted}")
        return problems
