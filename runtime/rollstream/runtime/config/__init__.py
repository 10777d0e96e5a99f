"""The configuration: a TOML file, with a model for each section.

- ``sections``   the models, with an explanation of each key
- ``store``      the model of ``[store]``
- ``gateway``    the model of ``[gateway]``
- ``metrics``    the model of ``[metrics]``
- ``ready_packs`` the models of ``[samplers.<name>.ready_packs]``
- ``section``    what every model is
- ``load``       reads the file and ``ROLLSTREAM_…`` variables
- ``explain``    messages for wrong settings

Needs the ``consumer`` extra, and so do the packages that import this one before anything else: in
a base install they raise ``MissingExtra``, which names the extra. Producers never import it.
"""

from importlib.util import find_spec

from rollstream.runtime.extras import how_to_install
from rollstream.schemas.errors import MissingExtra

_missing = [name for name in ("orjson", "pyarrow", "pydantic") if find_spec(name) is None]
if _missing:
    raise MissingExtra(
        "only producers work in a base install; sealers, samplers and whatever else reads "
        f"configuration or files need {', '.join(_missing)}: {how_to_install('consumer')} "
        "(with Ray: '.[sampler]')"
    )
