"""Clients that generators make of the OpenAPI document, used against a running gateway.

Generators and what their clients import come from their registries, into folders of the test.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from harness.served_gateway import served
from harness.step_writers import TOKENS

pytestmark = pytest.mark.timeout(600)
CLIENTS = Path(__file__).with_name("generated_clients")
TIMEOUT_S = 300.0


def run(folder: Path, *command: str) -> str:
    """What a command that succeeds prints."""
    done = _done(folder, command)
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


def install(folder: Path, *command: str) -> None:
    """Runs a command that needs a registry; skips the test where it cannot be reached."""
    done = _done(folder, command)
    if done.returncode:
        pytest.skip(f"{command} failed: {done.stderr[-1_000:]}")


def _done(folder: Path, command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(folder / "environment/bin"), os.environ["PATH"]))
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )


def made(language: str, folder: Path) -> Path:
    """A folder with the program."""
    return Path(shutil.copytree(CLIENTS / language, folder / language))


def used(port: int, folder: Path, *command: str) -> Any:
    """What the program says, once it has used the gateway."""
    return json.loads(run(folder, *command, f"http://127.0.0.1:{port}", TOKENS["math"]))


def document(port: int, folder: Path) -> None:
    found = httpx2.get(f"http://127.0.0.1:{port}/openapi.json")
    (folder / "openapi.json").write_text(found.text, encoding="utf-8")


def answer(accepted: int) -> dict[str, Any]:
    return {"accepted": accepted, "durable": True, "undelivered": 0}


def test_a_generated_python_client_submits_completes_fails_and_scores(tmp_path: Path) -> None:
    folder = made("python", tmp_path)
    run(folder, sys.executable, "-m", "venv", "environment")
    python = str(folder / "environment/bin/python")
    install(folder, python, "-m", "pip", "install", "--quiet", "-r", "requirements.txt")
    with served() as port:
        document(port, folder)
        source = ("--path", "openapi.json", "--output-path", "generated_client")
        generator = str(folder / "environment/bin/openapi-python-client")
        said = run(folder, generator, "generate", *source, "--meta", "none")
        assert "arning" not in said, "no call and no field is left out"
        found = used(port, folder, python, "client.py")
    assert found == {
        "submitted": answer(2),
        **dict.fromkeys(("completed", "failed", "scored"), answer(1)),
        "refused": "steps[0].step_index",
        "policy": "urn:rollstream:problem:no-policy",
    }


def test_a_generated_typescript_client_submits_fails_and_scores(tmp_path: Path) -> None:
    npm, folder = shutil.which("npm"), made("typescript", tmp_path)
    if npm is None:
        pytest.skip("Node.js is not installed")
    install(folder, npm, "install", "--no-audit", "--no-fund", "--no-package-lock")
    with served() as port:
        document(port, folder)
        run(folder, npm, "exec", "--", "openapi-typescript", "openapi.json", "-o", "api.d.ts")
        checks = ("--strict", "--target", "es2022", "--module", "nodenext")
        run(folder, npm, "exec", "--", "tsc", *checks, "client.ts")
        found = used(port, folder, "node", "client.js")
    assert found == {
        "submitted": answer(3),
        **dict.fromkeys(("failed", "scored"), answer(1)),
        "refused": "steps",
    }
