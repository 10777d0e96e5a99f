"""Programs in Go that tests run, each built once a machine."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

BUILT = Path.home() / ".cache" / "rollstream-tests"
BUILD_S = 280.0  # A test may last for 300 s. What Go has compiled so far stays in its cache.


class NotBuilt(Exception):
    """The program cannot be had here; the message says why."""


def go_program(module: str, version: str, name: str) -> Path:
    """Returns the program ``cmd/NAME`` of this version of a module.

    Raises:
        NotBuilt: Go is missing, cannot load the module, or needs longer than ``BUILD_S``.
    """
    folder = BUILT / f"{name}-{version}"
    program, go = folder / name, shutil.which("go")
    if program.exists():
        return program
    if go is None:
        raise NotBuilt(f"{name} is not built, and there is no Go to build it")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=folder) as made:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Of several processes of a run one builds it.
        if not program.exists():
            # `go install` refuses modules that exclude versions of others, as Prometheus does.
            loaded = _run(go, "mod", "download", "-json", f"{module}@{version}")
            sources = json.loads(loaded)["Dir"]
            _run(go, "build", "-C", sources, "-o", f"{made}/{name}", f"./cmd/{name}")
            os.replace(Path(made) / name, program)
    return program


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=True)
    except subprocess.CalledProcessError as error:
        raise NotBuilt(f"{' '.join(command)}: {error.stderr[-2000:]}") from error
    except subprocess.TimeoutExpired as error:
        raise NotBuilt(f"{' '.join(command)} needs longer; the next run goes on from it") from error
    return done.stdout
