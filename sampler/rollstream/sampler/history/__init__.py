"""Served batches, looked at again; every function reads, and claims nothing.

- ``replay``     recomputes a served batch from its cursor and seed, or checks it from files alone
- ``lineage``    from a step to files, rows, offsets and env replicas, and back from a rollout
- ``rollouts``   single rollouts: by uid, by step, the worst; their rows and what became of them
- ``scored_rewards``  rewards by late scores, from their files
- ``ranking``    which rollouts of many rows come first (pure)
- ``recorded``   what samplers decided, by their logs, or by files where there are none
- ``report``     what was trained on and what was dropped, by environment, length, lag and step
- ``report_fold``, ``report_rows``  the fold over the logs for it, and its counters (pure)
- ``run``        a run over its steps and its rollouts, by files alone
- ``uses``       which batches had a group, and what became of it there (pure)
- ``decisions``  a decision log, read by who does not own it
- ``without_logs``, ``batch_files``  what is known of a sampler whose logs are gone, by its files
"""

from rollstream.sampler.history.batch_files import Steps
from rollstream.sampler.history.lineage import (
    RolloutLineage,
    SamplerLineage,
    StepLineage,
    UsedGroup,
    lineage_of_rollout,
    lineage_of_step,
)
from rollstream.sampler.history.recorded import Recorded, RecordedInFiles, RecordedInLogs
from rollstream.sampler.history.replay import FileCheck, Replayed, check_from_files, replay_step
from rollstream.sampler.history.report import SamplerReport, report_of
from rollstream.sampler.history.report_rows import ReportRow
from rollstream.sampler.history.rollouts import (
    AskedRollouts,
    Became,
    FoundRollout,
    find_rollouts,
)
from rollstream.sampler.history.uses import Drop, Use
from rollstream.sampler.history.without_logs import KnownWithoutLogs, known_without_logs
from rollstream.sampler.training.examples.stored_examples import StoredExamples, stored_examples

__all__ = [
    "AskedRollouts",
    "Became",
    "Drop",
    "FileCheck",
    "FoundRollout",
    "KnownWithoutLogs",
    "Recorded",
    "RecordedInFiles",
    "RecordedInLogs",
    "Replayed",
    "ReportRow",
    "RolloutLineage",
    "SamplerLineage",
    "SamplerReport",
    "StepLineage",
    "Steps",
    "StoredExamples",
    "Use",
    "UsedGroup",
    "check_from_files",
    "find_rollouts",
    "known_without_logs",
    "lineage_of_rollout",
    "lineage_of_step",
    "replay_step",
    "report_of",
    "stored_examples",
]
