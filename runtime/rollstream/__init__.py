"""Rollstream: the durable data plane for asynchronous RL on language models.

Its packages have source roots of their own (``producers/``, ``consumers/``, …), which this file
joins. ``__version__`` is the installed version.
"""

from importlib import import_module

__version__: str
# Emptied first, so that the roots come in the order of sys.path, as if this file were not there.
__path__ = []
# Written so that type checkers and other readers of source recognise a namespace package.
__path__ = __import__("pkgutil").extend_path(__path__, __name__)


def __getattr__(name: str) -> str:
    """Reads ``__version__`` at its first use, so that importing the package stays fast."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: str = import_module("importlib.metadata").version(__name__)
    globals()[name] = found  # Looked up once: files and claims name it.
    return found
