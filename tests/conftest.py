"""Fixtures that every test may ask for; what they are made of is in ``harness``."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from harness.examples import PROFILE, SHARE, SHARE_EXAMPLES
from harness.kafka import KafkaFactory, own_brokers, start_shared_kafka, topics_deleted_after
from harness.s3_server import S3Server, s3_server
from rollstream.console.broker import EmbeddedKafka

# No test asserts a time, and a busy machine is no failure.
_PROPERTIES = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(PROFILE, _PROPERTIES)
settings.register_profile(SHARE, _PROPERTIES, max_examples=SHARE_EXAMPLES)
settings.load_profile(PROFILE)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Looks for no garbage while tests are collected, and never among what was collected.

    Modules and tests stay until the end of the run, and a third of the time went into the search.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _own_folder_for_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the tests of one process start shares a Ray, and nobody else does: they find each other
    in this folder. Its name is short, since Ray makes sockets in it."""
    tmp_path_factory.getbasetemp()  # This stays where it is.
    with tempfile.TemporaryDirectory(prefix="rs-", ignore_cleanup_errors=True) as folder:
        before = os.environ.get("TMPDIR")
        os.environ["TMPDIR"], tempfile.tempdir = folder, None
        yield
        tempfile.tempdir = None
        del os.environ["TMPDIR"]
        if before is not None:
            os.environ["TMPDIR"] = before


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A real broker that is started once, by each process of a run on several cores; tests make
    their own topics on it."""
    with start_shared_kafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def kafka_bootstrap(kafka: EmbeddedKafka) -> Iterator[str]:
    """Where clients of the shared broker connect; the test's topics are deleted after it."""
    with topics_deleted_after(kafka.bootstrap):
        yield kafka.bootstrap


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[KafkaFactory]:
    """Starts a broker of the test's own with each call, for tests that kill it."""
    with own_brokers(tmp_path) as start:
        yield start


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server that is started once, by each process of a run; tests have prefixes of their
    own. Its credentials are in the environment meanwhile."""
    with (
        s3_server(tmp_path_factory.mktemp("s3") / "data") as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in server.variables.items():
            patch.setenv(name, value)
        yield server
