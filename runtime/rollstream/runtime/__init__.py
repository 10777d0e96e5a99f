"""Time, randomness, deadlines, signals and configuration, which every process needs.

Map, a line a file:

- ``clock``      the system's clock, and ``ManualClock`` for tests; nothing else asks for the time
- ``entropy``    random tokens; nothing else asks for randomness
- ``deadline``   time-outs that nested waits share, and log lines about long waits
- ``collection``  no search for reference cycles while much is made that stays
- ``at_once``    coroutines that run to their end at once, for those who do not await
- ``logs``       log lines on stderr, as text or as JSON
- ``stepping``   a daemon thread that calls a method again and again
- ``shutdown``   SIGTERM and Ctrl-C as an event
- ``addresses``  of brokers and of a store's root, checked
- ``client_properties``  which librdkafka properties users may set
- ``few_calls``  an HTTP server whose calls, at once and in time, are bounded
- ``extras``     how to install an extra, for error messages
- ``metrics/``   what a process shows to Prometheus, ``/healthz`` and ``/readyz``
- ``config/``    the TOML file, a pydantic model for each section (needs the ``consumer`` extra)
"""
