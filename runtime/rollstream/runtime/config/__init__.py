"""The configuration: a TOML file, with a model for each section.

- ``sections``   the models, with an explanation of each key
- ``load``       reads the file and ``ROLLSTREAM_…`` variables
- ``explain``    messages for wrong settings

Needs the ``consumer`` extra (pydantic); producers never import it.
"""
