"""A run that is looked at: its files, and its logs where a broker answers."""

from __future__ import annotations

import threading
from typing import Any

from rollstream.console.page.document import as_json, html_of
from rollstream.console.page.rollout import rollout_page
from rollstream.console.page.shown import FromLogs, row_object, run_object
from rollstream.console.services import Services, figures_of
from rollstream.console.tokens import Decode, configured_tokenizer, decoder_of
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler.errors import UnknownRollout, UnknownSampler
from rollstream.sampler.history import (
    AskedRollouts,
    RecordedInFiles,
    find_rollouts,
    report_of,
)
from rollstream.sampler.history.run import (
    ROWS_MAX,
    FoundRows,
    RunColumns,
    RunFiles,
    RunSeries,
    TableQuery,
    bin_of,
    find_rows,
    series_of,
)
from rollstream.status import stuck_stages
from rollstream.store.errors import StoreError
from rollstream.store.rollups import VisibleFile
from rollstream.streams.errors import BrokerUnavailable

BARS_MAX = 200  # Of drops over steps.
PAGES_BYTES_MAX = 8 << 20  # Of rollouts, in a page without a server.


def page_of(services: Services, config: RollstreamConfig, name: str, *, timeout_s: float) -> bytes:
    """The page of a run as one file, by its logs too where a broker answers.

    Args:
        config: of the deployment.
        name: of the sampler.
        timeout_s: for the logs.

    Raises:
        StoreError: the store does not answer.
    """
    look = RunLook(services, config, name, from_files=False, timeout_s=timeout_s)
    look.read_files()
    look.read_logs()
    return html_of(look.whole())


class RunLook:
    """What was read of a run. One thread reads; any number may ask.

    Args:
        config: of the deployment.
        name: of the sampler.
        from_files: whether no broker is asked.
        timeout_s: for the logs.
    """

    def __init__(
        self,
        services: Services,
        config: RollstreamConfig,
        name: str,
        *,
        from_files: bool,
        timeout_s: float,
    ) -> None:
        self._services, self._config, self._name = services, config, name
        self._timeout_s = timeout_s
        self._store = services.bounded_store(config)
        self._files = RunFiles(self._store, config, name)
        self._read: tuple[RunColumns, RunSeries] | None = None
        self._logs: FromLogs | None = None
        self._without_logs = "--from-files" if from_files else "the logs are being read"
        self._from_files = from_files
        self._there = threading.Event()

    def read_files(self, deadline: Deadline | None = None) -> bool:
        """Reads what is new of the files; returns whether older ones are left.

        Args:
            deadline: from which on these are left.

        Raises:
            StoreError: the store does not answer.
        """
        if self._files.refresh(deadline) or self._read is None:
            columns = self._files.columns()
            self._read = columns, series_of(columns)
            self._there.set()
        return self._read[0].unread > 0

    def read_logs(self) -> None:
        """Reads the logs, where a broker answers; ``read_files`` comes before."""
        if self._from_files:
            return
        assert self._read is not None
        _, series = self._read
        reach_s = min(self._timeout_s, self._config.kafka.timeout_s)
        deadline = Deadline(self._timeout_s, self._services.clock)
        try:
            with self._services.connected(self._config, reach_s) as broker:
                figures = figures_of(self._services, self._config, broker, deadline)
                stuck = stuck_stages(figures, self._config)
                report = report_of(
                    self._name,
                    config=self._config,
                    steps_a_row=bin_of(series.steps, BARS_MAX),
                    broker=broker,
                    clock=self._services.clock,
                    timeout_s=deadline.left_s(),
                )
            self._logs = FromLogs(report=report, stuck=stuck)
        except (BrokerUnavailable, UnknownSampler) as error:
            self._logs, self._without_logs = None, str(error)

    def run(self, timeout_s: float) -> dict[str, Any] | None:
        """The object that the page shows; None: the files are not read yet."""
        read = self._await(timeout_s)
        if read is None:
            return None
        columns, series = read
        return {
            **run_object(
                self._name,
                series,
                self._logs,
                without_logs=self._without_logs,
                unreadable=columns.unreadable,
                now_ts=self._services.clock.now_us(),
            ),
            "environments": list(columns.environments),
            "unread": columns.unread,
        }

    def rows(self, query: TableQuery, timeout_s: float) -> FoundRows | None:
        """A page of the table; None: the files are not read yet."""
        read = self._await(timeout_s)
        return None if read is None else find_rows(read[0], query)

    def rollout(self, file: VisibleFile, uid: str) -> dict[str, Any]:
        """The page of a rollout.

        Raises:
            UnknownRollout: no file of the run has it. BlobMissing, CorruptFile: the file is gone,
                or damaged.
        """
        columns = None if self._read is None else self._read[0]
        at = None if columns is None else columns.at(file, uid)
        if columns is None or at is None:
            raise UnknownRollout(f"no file of this run that is known has a rollout {uid!r}")
        found = find_rollouts(
            AskedRollouts(uid=uid, file=file, sampler=self._name),
            config=self._config,
            store=self._store,
            recorded=RecordedInFiles(self._store, columns.steps_of(at)),
        )
        # Others may have the uid as that of their trajectory, and one may stand there twice.
        one = next(one for one in found if one.rollout_uid == uid)
        return rollout_page(one, self._decode(file.address.environment))

    def whole(self) -> dict[str, Any]:
        """What a page without a server shows: the run, its newest rollouts, and their pages up to
        ``PAGES_BYTES_MAX``."""
        found = self.rows(TableQuery(most=ROWS_MAX), timeout_s=0.0)
        assert found is not None, "read_files comes first"
        rows, pages, left = [*map(row_object, found.rows)], dict[str, Any](), PAGES_BYTES_MAX
        for row, shown in zip(found.rows, rows, strict=True):
            try:
                page = self.rollout(row.file, row.uid)
            except (StoreError, UnknownRollout):
                continue  # The file is gone, or damaged, or the uid has lines: others are not.
            left -= len(as_json(page))
            if left < 0:
                break
            pages[shown["key"]] = page
        run = self.run(timeout_s=0.0)
        assert run is not None
        return {**run, "found": found.found, "rows": rows, "rollouts": pages}

    def _await(self, timeout_s: float) -> tuple[RunColumns, RunSeries] | None:
        self._there.wait(timeout_s)
        return self._read

    def _decode(self, environment: str) -> Decode | None:
        path = configured_tokenizer(self._config, environment)
        return None if path is None else decoder_of(path)
