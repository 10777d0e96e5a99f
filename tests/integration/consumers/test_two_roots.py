"""Two sealers of one deployment, one of them with a typo in ``store.root``: real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from harness.rollouts import encode_record, make_entry
from rollstream.console.app import build
from rollstream.runtime.config.load import load_config
from rollstream.store import LocalBlobs, visible_files
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.topics.layout import Layout

TIMEOUT_S = 120.0
pytestmark = pytest.mark.broker


def command(config: Path, *arguments: str) -> list[str]:
    program = [sys.executable, "-m", "rollstream.console.entry", *arguments]
    return [*program, "--config", str(config)]


def run(config: Path, *arguments: str) -> Result:
    """A command that ends by itself, in this process."""
    return CliRunner().invoke(build(), [*arguments, "--config", str(config)])


def seal(config: Path) -> subprocess.CompletedProcess[str]:
    """A sealer that does not begin."""
    return subprocess.run(
        command(config, "seal"),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )


def configuration(folder: Path, name: str, bootstrap: str, namespace: str) -> Path:
    """The same deployment, but for the root's name."""
    file = folder / f"{name}.toml"
    file.write_text(
        f'[kafka]\nbootstrap = "{bootstrap}"\nnamespace = "{namespace}"\n'
        f'[store]\nroot = "{(folder / name).as_uri()}"\n'
        "[environments.math]\npartitions = 2\ntarget_group_size = 2\nflush_interval_s = 0\n"
    )
    return file


@pytest.mark.proves("F20")
def test_a_sealer_with_a_typo_in_its_root_is_not_taken_in(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    namespace = f"test-{uuid.uuid4().hex[:12]}"
    right = configuration(tmp_path, "store", kafka_bootstrap, namespace)
    wrong = configuration(tmp_path, "stroe", kafka_bootstrap, namespace)
    assert run(right, "topics", "create").exit_code == 0
    with ExitStack() as stack, KafkaBroker(kafka_bootstrap) as broker:
        sealer = stack.enter_context(
            subprocess.Popen(command(right, "seal"), stderr=subprocess.PIPE, text=True)
        )
        stack.callback(sealer.kill)
        refused = seal(wrong)
        assert refused.returncode == 1
        (told,) = [line for line in refused.stderr.splitlines() if line.startswith("rollstream: ")]
        assert f"recorded for {(tmp_path / 'store').as_uri()}" in told
        assert f"but {(tmp_path / 'stroe').as_uri()} has none: correct store.root" in told
        assert not (tmp_path / "stroe").exists()

        writer = broker.writer()
        for group in range(8):
            for member in "ab":
                entry = make_entry(
                    rollout_uid=f"{group}{member}", group_uid=f"g-{group}", group_size=2
                )
                value = encode_record([entry], partitions=2)
                topic = Layout(namespace).rollouts("math")
                writer.append(topic, value, key=f"g-{group}".encode())
        assert writer.flush(TIMEOUT_S) == 0
        blobs = LocalBlobs(tmp_path / "store")
        while any(
            row["pending"] for row in json.loads(run(right, "audit", "--json").stdout)["partitions"]
        ) or not visible_files(blobs):
            pass  # Each turn reads the logs; the test's time-out ends it.
        sealer.send_signal(signal.SIGTERM)
        assert sealer.wait(TIMEOUT_S) == 0
    report = json.loads(run(right, "audit", "--json").stdout)
    assert report["holds"]
    assert sum(row["sealed"] for row in report["partitions"]) == 16
    for checked in (["audit"], ["topics", "check"]):
        done = run(wrong, *checked)
        assert done.exit_code == 1
        assert "has none: correct store.root" in done.output
    assert load_config(wrong).store.root.endswith("/stroe")
    assert not (tmp_path / "stroe").exists()
    # As where Kafka's disk was lost: its logs are empty, and the root is the one that it had.
    empty = configuration(tmp_path, "store", kafka_bootstrap, f"{namespace}-empty")
    done = run(empty, "topics", "create")
    assert done.exit_code == 1
    assert f"belongs to namespace {namespace}," in done.output
    refused = seal(empty)
    assert refused.returncode == 1
    assert f"{namespace}-empty.groups.math.1 is missing" in refused.stderr
