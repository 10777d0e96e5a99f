"""A running sealer whose store hangs, as a process of its own, and a signal that is to end it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.hung_sealer import HANGS, configured
from harness.source_tree import ROOT

TIMEOUT_S = 2.0  # `kafka.timeout_s`, within which it commits what is decided.
MORE_S = 10.0  # As docs/operating/index.md has it.
BUSY_S = 30.0  # The machine may be.


@pytest.mark.proves("F24")
def test_a_signal_ends_a_sealer_whose_store_hangs_with_1_and_it_says_what_is_left(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "harness.hung_sealer", str(configured(tmp_path, TIMEOUT_S))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "tests"), *sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as sealer:
        try:
            assert sealer.stdout is not None
            assert sealer.stdout.readline() == f"{HANGS}\n"
            begun_s = time.monotonic()
            sealer.send_signal(signal.SIGTERM)
            _, told = sealer.communicate(timeout=TIMEOUT_S + MORE_S + BUSY_S)
            took_s = time.monotonic() - begun_s
        finally:
            sealer.kill()
    assert sealer.returncode == 1, told
    assert TIMEOUT_S <= took_s < TIMEOUT_S + MORE_S + BUSY_S
    assert "left without committing all that was decided; it will be read again" in told
    assert "leaves behind: " in told
    assert "put_files has not ended since" in told
