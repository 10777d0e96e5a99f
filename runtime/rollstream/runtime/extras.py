"""How an optional part of the installation is named in messages."""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """What a user runs to get the extra, from a clone: there is no release to install yet."""
    return f"in the clone of Rollstream, run: pip install '.[{extra}]'"
