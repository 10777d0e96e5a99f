"""The wheel: what is in it, and that the README's first lines run on nothing but it."""

from __future__ import annotations

import re
import subprocess
import sys
import uuid
from contextlib import closing
from pathlib import Path
from zipfile import ZipFile

import pytest
from hatchling.builders.wheel import WheelBuilder

from harness.admission import announce, announced
from harness.kafka import REQUEST_TIMEOUT_S
from harness.source_tree import ROOT, pyproject, roots
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.ingest.entry import EntryKind
from rollstream.schemas.ingest.record import decode_record
from rollstream.streams.broker import TopicPartition, TopicSpec
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.reading import read_between
from rollstream.streams.topics.layout import Layout

GROUP_SIZE = 8
INSTALL_TIMEOUT_S = 150.0  # NumPy and librdkafka may have to be fetched first.
RUN_TIMEOUT_S = 60.0

# What the README's lines take from the worker around them.
WORKER = """
from types import SimpleNamespace

problems = [SimpleNamespace(id="6 times 7", prompt=[1, 2, 3], score=lambda completion: 1.0)]
completion = SimpleNamespace(ids=[4, 2], logprobs=[-0.1, -0.2])
model = SimpleNamespace(load=lambda weights: None, sample=lambda prompt, n: [completion] * n)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    (built,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return Path(built)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts of a virtual environment with the wheel and its base dependencies only."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=INSTALL_TIMEOUT_S)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install"]
    subprocess.run(
        [*pip, "--quiet", "--constraint", str(ROOT / "constraints.txt"), str(wheel)],
        check=True,
        timeout=INSTALL_TIMEOUT_S,
    )
    return folder / "bin"


def run(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs it where nothing of the clone can be imported."""
    return subprocess.run(
        command,
        cwd=folder,
        env={},
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )


def first_lines_of_the_readme(bootstrap: str, environment: str) -> str:
    """Its first Python, with another broker and another environment."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"^```python[^\n]*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert block is not None
    code = block[1]
    for written, wanted in (("localhost:9092", bootstrap), ('"math"', f'"{environment}"')):
        assert code.count(written) == 1, code
        code = code.replace(written, wanted)
    return code


def test_wheel_holds_every_file_of_every_package_and_nothing_else(wheel: Path) -> None:
    in_tree = {
        f"rollstream/{path.relative_to(ROOT / root / 'rollstream').as_posix()}"
        for root in roots()
        for path in (ROOT / root / "rollstream").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    in_wheel = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert in_wheel == in_tree


def test_wheel_brings_the_command_and_the_licence(wheel: Path) -> None:
    archive = ZipFile(wheel)
    (entry_points,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
    assert "rollstream = rollstream.console.entry:main" in archive.read(entry_points).decode()
    assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())


@pytest.mark.broker
@pytest.mark.timeout(2 * INSTALL_TIMEOUT_S)
def test_first_lines_of_the_readme_publish_a_group_from_the_installed_wheel(
    installed: Path, kafka_bootstrap: str, tmp_path: Path
) -> None:
    environment = f"math-{uuid.uuid4().hex}"
    topic = Layout().rollouts(environment)
    told = Layout().admission(environment)
    with KafkaBroker(kafka_bootstrap, {}) as broker:
        specs = [TopicSpec(topic, 1, {}), TopicSpec(told, 1, {})]
        broker.admin().create(specs, REQUEST_TIMEOUT_S)
        announce(broker, told, announced(3))
    program = tmp_path / "worker.py"
    program.write_text(WORKER + first_lines_of_the_readme(kafka_bootstrap, environment))

    done = run(installed / "python", program, folder=tmp_path)

    assert done.returncode == 0, done.stderr
    where = TopicPartition(topic, 0)
    with KafkaBroker(kafka_bootstrap, {}) as broker, closing(broker.reader({where: 0})) as reader:
        _, end = reader.bounds(where, REQUEST_TIMEOUT_S)
        values = read_between(reader, where, 0, end, Deadline(REQUEST_TIMEOUT_S))
        records = [decode_record(one.value) for one in values]
    entries = [record.entry(index) for record in records for index in range(record.count)]
    # That it lives it may have said while it waited for admission.
    dispatched, *rollouts = [one for one in entries if one.kind != EntryKind.ALIVE]
    assert dispatched.kind == EntryKind.DISPATCHED
    assert dispatched.fields["group_size"] == len(rollouts) == GROUP_SIZE
    for rollout in rollouts:
        assert rollout.kind == EntryKind.SEGMENT
        assert rollout.fields["group_uid"] == dispatched.fields["group_uid"]
        assert rollout.fields["policy_version"] == "step-3"


@pytest.mark.timeout(2 * INSTALL_TIMEOUT_S)
def test_installed_wheel_has_its_version_and_names_what_the_command_line_needs(
    installed: Path, tmp_path: Path
) -> None:
    program = "import rollstream; print(rollstream.__version__)"
    done = run(installed / "python", "-c", program, folder=tmp_path)
    assert done.stdout.strip() == pyproject()["project"]["version"], done.stderr

    done = run(installed / "rollstream", "status", folder=tmp_path)
    assert done.returncode == 1
    assert "pip install '.[console]'" in done.stderr
