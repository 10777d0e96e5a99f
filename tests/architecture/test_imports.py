"""Who imports whom: lower layers only, and what must stay out of a package stays out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.source_tree import (
    ROOT,
    all_sources,
    imports,
    imports_of,
    package_folder,
    packages,
    sources,
)

# Package to the packages that it may import; docs/architecture.md, "The packages".
MAY_IMPORT = {
    "schemas": set[str](),
    "runtime": set[str](),
    "store": {"schemas", "runtime"},
    "streams": {"schemas", "runtime"},
    "producers": {"streams", "schemas", "runtime"},
    "folds": {"streams", "schemas", "runtime"},
    "status": {"folds", "streams", "schemas", "runtime"},
    "consumers": {"status", "folds", "streams", "store", "schemas", "runtime"},
    "sampler": {"folds", "streams", "store", "schemas", "runtime"},
    "torch": {"sampler", "folds", "streams", "schemas", "runtime"},
    "trl": {"sampler", "schemas", "runtime"},
    "verl": {"sampler", "schemas", "runtime"},
    "gateway": {"producers", "consumers", "sampler", "streams", "store", "schemas", "runtime"},
    "console": {
        *("gateway", "producers", "consumers", "sampler", "status", "folds"),
        *("streams", "store", "schemas", "runtime"),
    },
}
# The root of every error is in schemas, and what these raise grows from it like all others.
EXCEPTION = (
    ("runtime/rollstream/runtime/config/", "runtime/rollstream/runtime/metrics/"),
    "rollstream.schemas.errors",
)

BASE_INSTALL = {"confluent_kafka", "fastavro", "numpy", "xxhash"}
LIGHT = ("producers", "streams", "schemas", "runtime")  # What an env worker loads.
NEVER = {
    "producers": ("pyarrow", "ray", "pydantic"),
    "streams": ("pyarrow", "ray", "pydantic"),
    "consumers": ("ray",),
    "store": ("confluent_kafka", "ray"),
    "runtime": ("confluent_kafka", "pyarrow", "ray"),
}
PURE = (
    "schemas/rollstream/schemas",
    "streams/rollstream/streams/folds",
    "streams/rollstream/streams/owned/fence.py",
    "consumers/rollstream/consumers/assembling",
    "folds/rollstream/folds",
    "sampler/rollstream/sampler/decide",
    "sampler/rollstream/sampler/batch",
)
IMPURE = ("time", "random", "os", "confluent_kafka", "pyarrow", "ray")
# Outside of the console, which drives processes and terminals, these are asked in one place each.
ONE_PLACE = {
    "time": "runtime/rollstream/runtime/clock.py",
    "random": "runtime/rollstream/runtime/entropy.py",
    "secrets": "runtime/rollstream/runtime/entropy.py",
    "uuid": "runtime/rollstream/runtime/entropy.py",
}


def package_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "rollstream" and len(parts) > 1 else None


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_every_package_has_a_row_in_the_table() -> None:
    assert set(packages()) == set(MAY_IMPORT)


@pytest.mark.parametrize("package", packages())
def test_package_imports_only_the_packages_below_it(package: str) -> None:
    wrong = []
    for path in sources(package):
        for module, line in imports(path):
            other = package_of(module)
            if other in (None, package) or other in MAY_IMPORT[package]:
                continue
            excepted = relative(path).startswith(EXCEPTION[0]) and (
                module == EXCEPTION[1] or module.startswith(f"{EXCEPTION[1]}.")
            )
            if not excepted:
                wrong.append(f"{relative(path)}:{line} imports {module}")
    assert wrong == []


def test_the_gateway_imports_what_the_producers_package_hands_on() -> None:
    inside = [
        f"{relative(path)}:{line} imports {module}"
        for path in sources("gateway")
        for module, line in imports(path)
        if module.startswith("rollstream.producers.") and not module.split(".")[2][0].isupper()
    ]
    assert inside == []


@pytest.mark.parametrize("package", NEVER)
def test_package_never_imports_what_is_foreign_to_it(package: str) -> None:
    allowed = package_folder("runtime") / "config" if package == "runtime" else None
    wrong = [
        line
        for path in sources(package)
        if allowed is None or allowed not in path.parents
        for line in imports_of(path, *NEVER[package])
    ]
    assert wrong == []


@pytest.mark.parametrize("package", LIGHT)
def test_env_workers_need_only_the_base_install(package: str) -> None:
    runtime = package_folder("runtime")
    # Configuration files need the consumer extra, and producers take arguments. What shows metrics
    # needs an extra of its own, and is loaded where somebody wants them.
    more = {*(runtime / "config").rglob("*.py")} | {
        runtime / "metrics" / name for name in ("exposition.py", "server.py")
    }
    wrong = []
    for path in sources(package):
        if path in more:
            continue
        for module, line in imports(path):
            top = module.split(".")[0]
            if top not in BASE_INSTALL | {"rollstream"} | sys.stdlib_module_names:
                wrong.append(f"{relative(path)}:{line} imports {module}")
    assert wrong == []


def test_ray_stays_in_the_actor_of_the_sampler_and_its_client() -> None:
    sampler = package_folder("sampler")
    loads_ray = {*(sampler / "actor").rglob("*.py"), sampler / "api" / "client.py"}
    wrong = [
        line
        for _, path in all_sources()
        if path not in loads_ray
        for line in imports_of(path, "ray")
    ]
    assert wrong == []


@pytest.mark.parametrize("where", PURE)
def test_pure_code_has_no_clock_no_chance_and_no_io(where: str) -> None:
    start = ROOT / where
    files = [start] if start.suffix else sorted(start.rglob("*.py"))
    wrong = [line for path in files for line in imports_of(path, *IMPURE)]
    assert wrong == []


@pytest.mark.parametrize("module", ONE_PLACE)
def test_time_and_chance_are_asked_for_in_one_file(module: str) -> None:
    wrong = [
        line
        for package, path in all_sources()
        if package != "console" and relative(path) != ONE_PLACE[module]
        for line in imports_of(path, module)
    ]
    assert wrong == []


def test_environment_variables_are_read_in_one_file() -> None:
    allowed = {
        "runtime/rollstream/runtime/config/load.py",
        # Ray is told some things by no other way.
        "sampler/rollstream/sampler/actor/loopback_ray.py",
    }
    wrong = [
        relative(path)
        for package, path in all_sources()
        if package != "console" and relative(path) not in allowed
        if "os.environ" in path.read_text(encoding="utf-8") or imports_of(path, "os.environ")
    ]
    assert wrong == []
