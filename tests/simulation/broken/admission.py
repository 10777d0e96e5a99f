"""Samplers and workers that are wrong about how many groups may be begun."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from unittest.mock import patch

from rollstream.producers.admission.newest import NewestRecords
from rollstream.producers.admission.shares import Granted
from rollstream.sampler.decide.admission.capacity import Loads
from rollstream.sampler.decide.admission.granting import Granting
from rollstream.schemas.events import PartitionReport, SharesGranted
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds import in_flight
from rollstream.streams.folds.reported import ReportedNow
from simulation.admission.admitted import Admitted


class _Broken(Admitted):
    """The world of one seed."""

    def run(self) -> None:
        with self.broken():
            super().run()

    @contextmanager
    def broken(self) -> Iterator[None]:
        """While the code is."""
        raise NotImplementedError


class KeepingTheDead(_Broken):
    """What dead workers had begun counts for ever."""

    @contextmanager
    def broken(self) -> Iterator[None]:
        with patch.multiple(in_flight, SILENT_AFTER_S=1e9, SILENT_UNTOLD_AFTER_S=1e9):
            yield


class BlindToBegun(_Broken):
    """What is begun does not count."""

    @contextmanager
    def broken(self) -> Iterator[None]:
        with patch.object(Loads, "_begun", lambda loads, name, producers: 0):
            yield


class DeafToRequests(_Broken):
    """What requests lack is opened only where there is room for it."""

    @contextmanager
    def broken(self) -> Iterator[None]:
        observe = Granting.observe

        def deaf(of: Granting, state: Any, reported: Any, now_us: int, requests: Any) -> Any:
            return observe(of, state, reported, now_us, ())

        with patch.object(Granting, "observe", deaf):
            yield


class IgnoringEpochs(_Broken):
    """Of a sampler's shares workers take those that they read last."""

    @contextmanager
    def broken(self) -> Iterator[None]:
        def last(
            of: NewestRecords,
            event: SharesGranted,
            granted_us: int,
            read_s: float,
            *,
            by_producer: bool = False,
        ) -> bool:
            if by_producer:
                of._claims[event.sampler] = event.epoch
            of._granted_us[event.sampler] = granted_us
            of.shares = {**of.shares, event.sampler: Granted(event, read_s)}
            return True

        with patch.object(NewestRecords, "_grant", last):
            yield


class LosingReports(_Broken):
    """What a sampler knows is not what the logs hold: now and then it passes over a report."""

    @contextmanager
    def broken(self) -> Iterator[None]:
        apply, numbers = ReportedNow.apply, count(1)

        def lossy(of: ReportedNow, log: PartitionAddress, report: PartitionReport) -> None:
            if next(numbers) % 20:
                apply(of, log, report)

        with patch.object(ReportedNow, "apply", lossy):
            yield
