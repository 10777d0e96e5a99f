"""What a process counts and shows to Prometheus, and whether it is alive and ready.

Nothing is counted for it while it is off: figures that exist are read when somebody asks, and
durations are handed to ``Observe``, which does nothing then.

- ``metric``     a metric, and a sample of it
- ``catalogue``  every metric: name, labels and help
- ``timings``    counts durations
- ``liveness``   since when a loop, or the holder of a lock, makes no progress
- ``watched``    what a process shows, and the one server of its address
- ``server``     ``/metrics``, ``/healthz`` and ``/readyz`` over HTTP (needs the ``metrics`` extra)
- ``exposition``  samples as families of ``prometheus_client`` (likewise)
"""
