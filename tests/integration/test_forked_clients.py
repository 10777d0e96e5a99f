"""A process that was forked off one with clients opens its own, and ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from harness.forked_clients import ENDS_WITHIN_S, KINDS
from rollstream.consumers import create_deployment
from rollstream.runtime.config.load import load_config

CONFIG = """
[kafka]
bootstrap = "{bootstrap}"
namespace = "{namespace}"
[store]
root = "{root}"
[environments.math]
partitions = 1
[samplers.trainer-a]
environments = ["math"]
"""


@pytest.mark.broker
def test_a_child_that_opens_a_client_under_its_parents_name_goes_on_and_ends(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    """In a process of its own: pytest's faulthandler starts a thread, which hides what hangs."""
    config = tmp_path / "rollstream.toml"
    text = CONFIG.format(
        bootstrap=kafka_bootstrap, namespace=f"test-{uuid4().hex}", root=tmp_path.as_uri()
    )
    config.write_text(text)
    create_deployment(load_config(config))
    done = subprocess.run(
        [sys.executable, "-m", "harness.forked_clients", str(config)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=2 * len(KINDS) * ENDS_WITHIN_S,
        check=False,
    )
    assert done.stdout.splitlines() == [f"{kind}: exit-0" for kind in KINDS], done.stderr
