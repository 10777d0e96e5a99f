"""Every metric that a process may show: name, labels and help.

``docs/operating/metrics.md``, the alarms and the board are held to it by tests. Names end in their
unit. Counters count since the process began, and figures of logs since the logs began.
"""

from __future__ import annotations

from rollstream.runtime.metrics.metric import Kind, Metric

CATALOGUE: list[Metric] = []


def _add(kind: Kind, name: str, help: str, *labels: str) -> Metric:
    metric = Metric(f"rollstream_{name}", kind, help, labels)
    CATALOGUE.append(metric)
    return metric


def _counter(name: str, help: str, *labels: str) -> Metric:
    return _add(Kind.COUNTER, f"{name}_total", help, *labels)


def _gauge(name: str, help: str, *labels: str) -> Metric:
    return _add(Kind.GAUGE, name, help, *labels)


def _seconds(name: str, help: str, *labels: str) -> Metric:
    return _add(Kind.HISTOGRAM, f"{name}_seconds", help, *labels)


# Every process. ``part`` is a sealer, a sampler, a gateway or the producers.
ALIVE = _gauge("alive", "1 if it makes progress, as /healthz says", "part")
READY = _gauge("ready", "1 if it serves, as /readyz says", "part")
SCRAPE_FAILURES = _counter("scrape_failures", "Parts whose figures could not be read")
STORE_CALL = _seconds("store_call", "Calls of the store, those that failed included", "call")
STORE_FAILURES = _counter("store_failures", "Calls of the store that failed", "call")
BROKER_APPEND = _seconds("broker_append", "From an append to the broker's answer", "topic")
BROKER_FAILURES = _counter("broker_append_failures", "Appends that failed or are in doubt", "topic")
BROKER_CALL = _seconds("broker_call", "Questions to the broker about topics and groups", "call")

# Sealers.
_ENVIRONMENT, _PARTITION = ("environment",), ("environment", "partition")
SEALER_LOOP_AGE = _gauge("sealer_loop_age_seconds", "Seconds since its loop came round last")
SEALER_READ = _counter(
    "sealer_read_entries", "Entries of ingest logs that were read", *_ENVIRONMENT
)
SEALER_READ_BYTES = _counter("sealer_read_bytes", "Bytes of their records", *_ENVIRONMENT)
SEALER_SEGMENTS = _counter("sealer_sealed_segments", "Segments in sealed groups", *_ENVIRONMENT)
SEALER_GROUPS = _counter("sealer_sealed_groups", "Sealed groups", *_ENVIRONMENT)
SEALER_FLUSHES = _counter("sealer_flushes", "Flushes that were committed", *_ENVIRONMENT)
SEALER_WRITTEN_BYTES = _counter(
    "sealer_written_bytes", "Bytes of the files of these flushes", *_ENVIRONMENT
)
SEALER_SETTLED = _counter(
    "sealer_settled_entries", "Entries that ended without a group", "environment", "reason"
)
SEALER_DEAD_LETTERS = _counter("sealer_dead_letters", "Dead letters that were written")
SEALER_SEAL = _seconds(
    "sealer_seal", "From a group's first record to its commit, by log time", *_ENVIRONMENT
)
SEALER_FLUSH = _seconds("sealer_flush", "From a flush's begin to its end", *_ENVIRONMENT)
SEALER_CLAIM = _seconds("sealer_claim", "Claims of seal logs, reading included", *_ENVIRONMENT)
SEALER_MEMORY = _gauge("sealer_memory_bytes", "Bytes of records in memory")
SEALER_MEMORY_MAX = _gauge("sealer_memory_max_bytes", "sealers.memory_bytes")
SEALER_OWNED = _gauge("sealer_partitions", "Partitions that it owns", *_ENVIRONMENT)
SEALER_POSITION = _gauge("sealer_position_offset", "Next offset to be read", *_PARTITION)
SEALER_WATERMARK = _gauge("sealer_watermark_offset", "Offsets below it are settled", *_PARTITION)
SEALER_PENDING = _gauge("sealer_pending_entries", "Entries of undecided groups", *_PARTITION)
SEALER_PENDING_BYTES = _gauge("sealer_pending_bytes", "Bytes of their records", *_PARTITION)
SEALER_PENDING_GROUPS = _gauge("sealer_pending_groups", "Undecided groups", *_PARTITION)
SEALER_DECIDED = _gauge("sealer_decided_entries", "Entries that wait for a flush", *_PARTITION)
SEALER_BACKLOG = _gauge(
    "sealer_backlog_seconds", "Age of the oldest entry that it read and did not settle", *_PARTITION
)
SEALER_WAITS_FOR_ROOM = _gauge(
    "sealer_waits_for_memory", "1 if it is not read, since memory is used up", *_PARTITION
)
SEALER_FOREIGN = _gauge(
    "sealer_foreign_records", "Records of its seal log that no owner wrote", *_PARTITION
)
SEALER_ASIDE = _gauge("sealer_aside", "1 if it is put aside", *_PARTITION)
SEALER_SCORES_ASIDE = _gauge(
    "sealer_scores_aside", "1 if its late scores are written no more", *_PARTITION
)
SEALER_TROUBLE = _gauge("sealer_trouble", "1 if anything hinders it, or fails beside", *_PARTITION)

# Samplers.
_OF = ("sampler",)
_OF_ENVIRONMENT = ("sampler", "environment")
SAMPLER_BUSY = _gauge("sampler_busy_seconds", "For how long one decision has been under way", *_OF)
SAMPLER_OWNS = _gauge("sampler_owns", "1 if it owns its decision log", *_OF)
SAMPLER_READY = _gauge("sampler_ready_groups", "Groups that may be served", *_OF_ENVIRONMENT)
SAMPLER_WAITING = _gauge("sampler_waiting_groups", "Sealed groups that cannot be served now", *_OF)
SAMPLER_LAG = _gauge(
    "sampler_ready_lag_steps", "Policy lag of ready groups, by quantile", "sampler", "quantile"
)
SAMPLER_CAPACITY = _gauge(
    "sampler_open_groups", "Groups that admission still lets begin", *_OF_ENVIRONMENT
)
SAMPLER_PRODUCERS = _gauge("sampler_producers", "Producers that live", *_OF_ENVIRONMENT)
SAMPLER_PRODUCERS_WAITING = _gauge(
    "sampler_producers_waiting", "Producers that wait to begin groups", *_OF_ENVIRONMENT
)
SAMPLER_INSERTS = _gauge("sampler_inserts", "Groups that became ready since the last resume", *_OF)
SAMPLER_USES = _gauge("sampler_uses", "Slots of batches since then", *_OF)
SAMPLER_OUTCOMES = _gauge("sampler_groups", "Groups by what became of them", "sampler", "outcome")
SAMPLER_OPEN = _gauge("sampler_open_batches", "Batches that are served and not final", *_OF)
SAMPLER_OPEN_MAX = _gauge("sampler_open_batches_max", "max_open_batches", *_OF)
SAMPLER_OVERDUE = _gauge("sampler_overdue_batches", "Batches not acked for ack_timeout_s", *_OF)
SAMPLER_OVER_DELAY = _gauge(
    "sampler_rollouts_left_out", "Rollouts beyond a max_rollout_…_delay", "sampler", "limit"
)
SAMPLER_STEP = _gauge("sampler_next_step", "The step that was not served yet", *_OF)
SAMPLER_POLICY = _gauge("sampler_policy_step", "Step of the newest policy; -1: none", *_OF)
SAMPLER_CALLS = _gauge("sampler_waiting_calls", "Calls that wait, by cause", "sampler", "cause")
SAMPLER_BATCH = _seconds("sampler_batch", "Calls for batches, waiting included", *_OF)
SAMPLER_ACK = _gauge(
    "sampler_ack_seconds", "From a decision to its ack, newest 512", "sampler", "quantile"
)
SAMPLER_VERIFIER = _gauge(
    "sampler_verifier_seconds", "Median from the seal to the last awaited score", *_OF
)
SAMPLER_READ = _counter("sampler_read_groups", "Groups read that its cache lacked", *_OF)
SAMPLER_CACHED = _gauge("sampler_cached_bytes", "Bytes in that cache", *_OF)
SAMPLER_CACHE_MAX = _gauge("sampler_cache_max_bytes", "cache_bytes", *_OF)
SAMPLER_DUPLICATES = _gauge("sampler_duplicates", "Segments that came once more", *_OF)
SAMPLER_DISPATCHED = _gauge("sampler_dispatched_groups", "Groups dispatched and not ended", *_OF)
SAMPLER_SCORES_EARLY = _gauge("sampler_early_scores", "Scores that wait for their group", *_OF)
SAMPLER_SCORES_UNUSED = _gauge(
    "sampler_unused_scores", "Scores of no use, by reason", "sampler", "reason"
)
SAMPLER_SCORES_BEHIND = _gauge(
    "sampler_scores_behind", "1 if its scores are read no further for now", *_OF_ENVIRONMENT
)
SAMPLER_ASIDE = _gauge("sampler_aside_logs", "Logs that are read no more", *_OF)

# Gateways.
GATEWAY_TAKEN = _gauge("gateway_taken", "What requests take now, by resource", "resource")
GATEWAY_TAKEN_MAX = _gauge("gateway_taken_max", "The limit of that", "resource")
GATEWAY_REQUESTS = _counter("gateway_requests", "Calls that were begun", *_ENVIRONMENT)
GATEWAY_REFUSED = _counter("gateway_refused", "Calls answered with a problem, by its kind", "kind")
GATEWAY_UNDELIVERED = _counter(
    "gateway_undelivered", "Steps answered with 202 that may be lost", *_ENVIRONMENT
)
GATEWAY_LOOP_AGE = _gauge("gateway_loop_age_seconds", "Seconds since its loop came round last")

# Producers: all of a process that were given to serve_metrics.
PRODUCER_OUTSTANDING = _gauge("producer_outstanding_entries", "Entries without an answer so far")
PRODUCER_HELD = _gauge("producer_held_bytes", "Bytes of them")
PRODUCER_SENT = _counter("producer_delivered_entries", "Entries that are in the log")
PRODUCER_FAILED = _counter("producer_failed_entries", "Entries that are, perhaps, not in the log")
PRODUCER_WAITS = _gauge("producer_waiting_calls", "Calls that wait, by cause", "cause")

# ``rollstream monitor``: the whole deployment, as `rollstream status` sees it.
STUCK = _gauge("stuck", "Stages that are stuck, by alarm", "stage", "alarm", "level")
LOOK_AGE = _gauge("look_age_seconds", "Seconds since it read the logs last")
LOOK = _seconds("look", "How long it took to read the logs")
SEALERS = _gauge("sealers", "Sealers that run", *_ENVIRONMENT)
BACKLOG = _gauge("backlog_records", "Records from the oldest open group on", *_ENVIRONMENT)
BACKLOG_AGE = _gauge("backlog_seconds", "Age of the oldest of them", *_ENVIRONMENT)
LOST = _gauge("lost_records", "Records that retention deleted unsealed", *_ENVIRONMENT)
PUBLISHED_AGE = _gauge("published_age_seconds", "Age of the newest record", *_ENVIRONMENT)
FLUSH_AGE = _gauge("flush_age_seconds", "Age of the newest flush", *_ENVIRONMENT)
DECISION_AGE = _gauge("decision_age_seconds", "Age of the newest decision", *_OF)
LETTERS_KEPT = _gauge("kept_dead_letters", "Dead letters that nobody published again")
