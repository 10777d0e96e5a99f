"""What every process needs and no rule about rollouts.

Map, a line a file:

- ``clock``      the one place that asks for the time; ``ManualClock`` for tests
- ``entropy``    the one place that asks for randomness
- ``deadline``   how long a wait may still last, and what it waits for
- ``shutdown``   SIGTERM and Ctrl-C as a flag
- ``extras``     how messages name what an optional package is installed with
- ``config/``    the TOML file, one pydantic model a section (needs the ``consumer`` extra)
"""
