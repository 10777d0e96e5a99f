from __future__ import annotations

import pytest

from harness.documented_run import DocumentedRun


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> DocumentedRun:
    return DocumentedRun(tmp_path_factory.mktemp("documented") / "store")
