"""How to install an extra, for error messages."""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """The command that installs the extra from a clone; there is no release yet."""
    return f"in the clone of Rollstream, run: pip install '.[{extra}]'"
