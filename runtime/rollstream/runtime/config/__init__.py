"""The configuration: one TOML file, one model a section, every key explained below it.

- ``sections``   the models; a section is the policy that its room takes
- ``load``       the file, ``ROLLSTREAM_…`` variables, errors that say what to write instead

Needs the ``consumer`` extra (pydantic); producers never import it.
"""
