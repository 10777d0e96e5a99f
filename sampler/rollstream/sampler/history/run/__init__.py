"""A run over its steps, and its rollouts, by the files under the store's root.

- ``files``    reads manifests and batch files, each once, also of a run that goes on
- ``columns``  what they say of rollouts, groups and steps, as columns
- ``series``   rewards, lag, waits and throughput over steps (pure)
- ``table``    the rollouts that a search finds (pure)
"""

from rollstream.sampler.history.run.columns import RunColumns
from rollstream.sampler.history.run.files import RunFiles
from rollstream.sampler.history.run.series import Lines, RunSeries, bin_of, series_of
from rollstream.sampler.history.run.table import (
    ORDERS,
    ROWS_MAX,
    FoundRows,
    RolloutRow,
    TableQuery,
    find_rows,
)

__all__ = [
    "ORDERS",
    "ROWS_MAX",
    "FoundRows",
    "Lines",
    "RolloutRow",
    "RunColumns",
    "RunFiles",
    "RunSeries",
    "TableQuery",
    "bin_of",
    "find_rows",
    "series_of",
]
