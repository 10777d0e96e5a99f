"""The configuration: one TOML file, one model a section, every key explained below it.

- ``sections``   the models; a section is the policy that its room takes
- ``load``       the file and ``ROLLSTREAM_…`` variables
- ``explain``    what is wrong with a setting, and what to write instead

Needs the ``consumer`` extra (pydantic); producers never import it.
"""
