"""What an env worker loads when it imports the SDK."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("ray", "pyarrow", "pydantic", "typer", "rich")
PROGRAM = """
import json, sys
import rollstream.{package}
print(json.dumps(sorted({{name.split(".")[0] for name in sys.modules}})))
"""


@pytest.mark.parametrize("package", ["producers", "streams", "schemas", "runtime"])
def test_package_of_the_base_install_loads_nothing_heavy(package: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(package=package)],
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
    )
    loaded = json.loads(done.stdout)
    assert "rollstream" in loaded
    assert set(HEAVY) & set(loaded) == set()
