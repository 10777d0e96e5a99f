"""Releases of Rollstream that were never made: copies of the sources with other schemas, each with
a process that runs them over logs and files which all share."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.source_tree import ROOT, roots
from harness.versions import REGION, RETIRED, Source, changed, shipped_source

TESTS = ROOT / "tests"
TIMEOUT_S = 120.0
_EVENTS = "schemas/rollstream/schemas/events"
# What version 4 of ``ingest_record`` adds.
_RECORD: Mapping[tuple[str, str], Sequence[str]] = {
    ("schemas/rollstream/schemas/records.py", "RolloutRecord"): [
        'region: str = "nowhere"',
        'site: str = "nowhere"',
        "sampler_seed: int = 7",
        'notes: str = ""',
        "entropies: NDArray[np.float32] | None = None",
    ]
}


class Release:
    """One release in a folder of its own.

    Args:
        folder: to be made.
        version: which it is installed as.
        schemas: its own, by file name (``flushed.v3.avsc``), besides those of the sources.
        fields: lines that a class has first, by (file, class).
    """

    def __init__(
        self,
        folder: Path,
        version: str,
        schemas: Mapping[str, Source],
        fields: Mapping[tuple[str, str], Sequence[str]],
    ) -> None:
        self.folder, self.version = folder, version
        self._process: subprocess.Popen[str] | None = None
        for root in roots():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / root, folder / root, ignore=ignored)
        installed = folder / "runtime" / f"rollstream-{version}.dist-info"
        installed.mkdir()
        (installed / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: rollstream\nVersion: {version}\n"
        )
        for name, source in schemas.items():
            path = folder / "schemas/rollstream/schemas/avsc" / name
            path.write_text(json.dumps(source), encoding="utf-8")
        for (file, name), lines in fields.items():
            _add_fields(folder / file, name, lines)

    def run(self, shared: Path, do: str, **arguments: Any) -> Any:
        """Does that of ``harness.release_process`` in this release's process; what it returned.

        Args:
            shared: folder of the logs and the store.
        """
        if self._process is None:
            self._process = self._started()
        to, answers = self._process.stdin, self._process.stdout
        assert to is not None
        assert answers is not None
        to.write(json.dumps({"folder": str(shared), "do": do, "arguments": arguments}) + "\n")
        to.flush()
        answer = answers.readline()
        assert answer, f"{do}: the process of {self.version} has ended"
        return json.loads(answer)

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.communicate(timeout=TIMEOUT_S)

    def _started(self) -> subprocess.Popen[str]:
        paths = [str(self.folder / root) for root in roots()]
        return subprocess.Popen(
            [sys.executable, "-m", "harness.release_process"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([*paths, str(TESTS)])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


def _add_fields(file: Path, name: str, lines: Sequence[str]) -> None:
    """Before the first field of a dataclass whose fields are given by name."""
    text = file.read_text(encoding="utf-8")
    head, found, tail = text.partition(f"\nclass {name}")
    signature, quotes, rest = tail.partition('"""')
    doc, end, body = rest.partition('"""\n')
    assert all((found, quotes, end)), (file, name)
    added = "".join(f"    {line}\n" for line in lines)
    file.write_text(f"{head}{found}{signature}{quotes}{doc}{end}{added}{body}", encoding="utf-8")


def first_release(folder: Path) -> Release:
    """0.1.0: ``flushed.v3`` has a field more, with a value."""
    return Release(
        folder,
        "0.1.0",
        {"flushed.v3.avsc": changed(shipped_source("flushed"), add=[RETIRED])},
        {(f"{_EVENTS}/groups.py", "Flushed"): ['retired: str = "by 0.1.0"']},
    )


def second_release(folder: Path) -> Release:
    """0.2.0: version 4 of ``flushed``, 2 of ``batch_served``, 4 of ``ingest_record``. Each has more
    fields, in the middle of what is there; the first and the last lost some as well."""
    return Release(
        folder,
        "0.2.0",
        {
            "flushed.v3.avsc": changed(shipped_source("flushed"), add=[RETIRED]),
            "flushed.v4.avsc": changed(shipped_source("flushed"), add=[REGION]),
            "batch_served.v2.avsc": changed(shipped_source("batch_served"), add=[REGION]),
            "ingest_record.v4.avsc": second_ingest_record(),
        },
        {
            (f"{_EVENTS}/groups.py", "Flushed"): ['region: str = "eu"'],
            (f"{_EVENTS}/sampler.py", "BatchServed"): ['region: str = "eu"'],
            **_RECORD,
        },
    )


def third_release(folder: Path) -> Release:
    """0.3.0: only ``ingest_record`` has a version 4, so its events are those of 0.1.0."""
    second = {"ingest_record.v4.avsc": second_ingest_record()}
    return Release(folder, "0.3.0", second, _RECORD)


def second_ingest_record() -> Source:
    """Adds a field of each kind, before others; removes a text and an array, which stand before
    others in a record's payload."""
    source = changed(shipped_source("ingest_record"))
    fields = list(source["fields"])
    names = [field["name"] for field in fields]
    shared = fields[names.index("shared")]["type"]["items"]
    shared["fields"].insert(0, {**REGION, **_row("shared", "string", "nowhere")})
    extras = fields[names.index("extras")]["type"][1]
    kept = [f for f in extras["fields"] if f["name"] not in ("prefix_hash", "ref_logprobs")]
    notes = {"name": "notes", "type": "bytes", "default": "", "doc": "For people."}
    extras["fields"] = [{**notes, **_row("text", "string", "")}, *kept]
    seed = {"name": "sampler_seed", "type": "bytes", "default": "", "dtype": "<i8", "doc": "Its."}
    entropies = {"name": "entropies", "type": "int", "default": 0, "dtype": "<f4", "doc": "Each."}
    at = names.index("output_tokens")
    fields.insert(at, {**entropies, **_row("array", ["null", "array"], None)})
    at = names.index("example_id")
    fields.insert(at, {**seed, **_row("number", "long", 7)})
    # Behind ``shared``, whose columns stand behind it in rows; the payload stays the last.
    site = {**REGION, "name": "site"}
    fields.insert(-1, {**site, **_row("once", "string", "nowhere")})
    return {**source, "fields": fields}


def _row(column: str, kind: Any, default: Any) -> Source:
    return {"column": column, "row": {"type": kind, "default": default}}
