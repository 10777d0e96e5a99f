"""The HTTP API through which writers in any language submit steps of trajectories.

It keeps nothing of its own: what it answered durable is in Kafka's log, so any number may run side
by side, and each may be killed at any moment.

Map, a line a file:

- ``app``       the routes, over a writer of steps (``create_app``)
- ``models``    what requests and answers hold, checked without a loop over tokens (pure)
- ``bodies``    a body's bytes as what they say, or the problem with them (pure)
- ``limits``    what requests may take, in all and by environment (pure)
- ``connections``  bounds connections, and cuts off clients that send nothing
- ``intake``    hands steps to the writer: bounds, deadlines, what was accepted and not delivered
- ``scores``    late scores, from threads that wait for the broker (``LateScores``)
- ``problems``  errors as problem details, RFC 9457 (pure)
- ``answers``   what is answered, and when to come again
- ``tokens``    who may write to which environment (pure)
- ``metrics``   its figures for Prometheus, at a port of their own
- ``server``    runs it until a signal, then drains (``serve``)

Needs the ``gateway`` extra; without it, importing it raises ``MissingExtra``.
"""

from importlib.util import find_spec

import rollstream.runtime.config  # noqa: F401 - First: it says which extra is missing.
from rollstream.runtime.extras import how_to_install
from rollstream.schemas.errors import MissingExtra

_NEEDED = ("fastapi", "fastapi_offline", "httptools", "msgspec", "uvicorn", "uvloop")
_missing = [name for name in _NEEDED if not find_spec(name)]
if _missing:
    raise MissingExtra(f"the gateway needs {', '.join(_missing)}; {how_to_install('gateway')}")

from rollstream.gateway.app import create_app  # noqa: E402 - After the check.
from rollstream.gateway.scores import LateScores  # noqa: E402
from rollstream.gateway.server import (  # noqa: E402
    CannotListen,
    NoTokens,
    TooFewFiles,
    check_open_to_all,
    serve,
)

__all__ = [
    "CannotListen",
    "LateScores",
    "NoTokens",
    "TooFewFiles",
    "check_open_to_all",
    "create_app",
    "serve",
]
