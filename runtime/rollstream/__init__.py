"""Rollstream: the durable data plane for asynchronous RL on language models.

Its packages have source roots of their own (``producers/``, ``consumers/``, …), which this file
joins. ``__version__`` is the installed version.
"""

from importlib import import_module

__version__: str
# Emptied first, so that the roots come in the order of sys.path, as if this file were not there.
__path__ = []
# In the words by which tools that read sources know that a package goes on elsewhere.
__path__ = __import__("pkgutil").extend_path(__path__, __name__)


def __getattr__(name: str) -> str:
    """Reads the version when it is asked for: an env worker need not wait for it."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return str(import_module("importlib.metadata").version(__name__))
