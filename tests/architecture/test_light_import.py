"""What an env worker loads when it imports the SDK, and what it is told of the rest."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("ray", "pyarrow", "pydantic", "prometheus_client", "typer", "rich")
PROGRAM = """
import json, sys
import rollstream.{package}
print(json.dumps(sorted({{name.split(".")[0] for name in sys.modules}})))
"""


BASE_INSTALL = """
import sys
sys.modules.update(dict.fromkeys({missing}))
try:
    import rollstream.{module}
except ImportError as error:
    print(type(error).__name__, error)
"""


def printed(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True, timeout=60
    ).stdout


@pytest.mark.parametrize(
    "module", ["sampler", "consumers", "store", "runtime.config.load", "runtime.config.sections"]
)
@pytest.mark.parametrize("missing", [("pydantic", "pyarrow", "orjson"), ("pyarrow",)])
def test_what_needs_the_consumer_extra_says_so_in_a_base_install(
    module: str, missing: tuple[str, ...]
) -> None:
    told = printed(BASE_INSTALL.format(missing=missing, module=module))
    assert told.startswith("MissingExtra ")
    assert ", ".join(sorted(missing)) in told
    assert "pip install '.[consumer]'" in told


def test_an_adapter_without_its_library_says_which_extra_has_it() -> None:
    told = printed(BASE_INSTALL.format(missing=("torch",), module="torch"))
    assert told.startswith("MissingExtra ")
    assert "pip install '.[torch]'" in told


def test_a_command_loads_no_other() -> None:
    program = "import sys; from rollstream.console.app import build; build('status'); print(*{})"
    loaded = printed(program.format("sys.modules")).split()
    assert "rollstream.console.commands.status" in loaded
    assert not {"rollstream.console.commands.seal", "rollstream.sampler"} & {*loaded}


@pytest.mark.parametrize("package", ["producers", "streams", "schemas", "runtime"])
def test_package_of_the_base_install_loads_nothing_heavy(package: str) -> None:
    loaded = json.loads(printed(PROGRAM.format(package=package)))
    assert "rollstream" in loaded
    assert set(HEAVY) & set(loaded) == set()
