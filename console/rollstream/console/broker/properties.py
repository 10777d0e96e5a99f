"""The embedded broker's configuration, a pure function of its ports."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

LOOPBACK = "127.0.0.1"

# Long trajectories with their arrays inline; Kafka's own default is 1 MiB.
MESSAGE_BYTES_MAX = 16 * 1024 * 1024

SEGMENT_BYTES = 64 * 1024 * 1024
CLEANER_BUFFER_BYTES = 4 * 1024 * 1024
LOG_FILE_BYTES_MAX = 16 * 1024 * 1024

# Relative to the data folder, in which the broker runs, so that the folder can be moved.
LOG_DIR = "log"
LOG_FILE = "broker.log"


def broker_properties(
    *, port: int, controller_port: int, overrides: Mapping[str, str]
) -> dict[str, str]:
    """One node that is broker (on ``port``) and its own controller, reachable from this machine
    only; ``overrides`` replace these properties or add to them."""
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": f"{LOOPBACK}:{controller_port}",
        "listeners": f"BROKER://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller_port}",
        "advertised.listeners": f"BROKER://{LOOPBACK}:{port}",
        "inter.broker.listener.name": "BROKER",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": LOG_DIR,
        "log.segment.bytes": str(SEGMENT_BYTES),
        "log.cleaner.dedupe.buffer.size": str(CLEANER_BUFFER_BYTES),
        "message.max.bytes": str(MESSAGE_BYTES_MAX),
        "replica.fetch.max.bytes": str(MESSAGE_BYTES_MAX),
        # `rollstream topics create` makes topics with their settings; a mistyped name makes none.
        "auto.create.topics.enable": "false",
        # There is one node, so the internal topics cannot have three replicas.
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "2",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "2",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        # Clients may ask for less than Kafka's 6 s until a dead sealer's partitions move.
        "group.min.session.timeout.ms": "1000",
        # After kill -9 the broker serves only once its earlier session has ended.
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "300",
        "controller.quorum.election.timeout.ms": "300",
        "controller.quorum.fetch.timeout.ms": "1000",
        **overrides,
    }


def logging_properties() -> dict[str, str]:
    """Log4j 2 settings: log files of limited size, so that a broker does not fill the disk."""
    return {
        "status": "error",
        "appender.file.type": "RollingFile",
        "appender.file.name": "file",
        "appender.file.fileName": LOG_FILE,
        "appender.file.filePattern": f"{LOG_FILE}.%i",
        "appender.file.layout.type": "PatternLayout",
        "appender.file.layout.pattern": "%d{ISO8601} %p %m (%c)%n",
        "appender.file.policies.type": "Policies",
        "appender.file.policies.size.type": "SizeBasedTriggeringPolicy",
        "appender.file.policies.size.size": str(LOG_FILE_BYTES_MAX),
        "appender.file.strategy.type": "DefaultRolloverStrategy",
        "appender.file.strategy.max": "2",
        "rootLogger.level": "info",
        "rootLogger.appenderRef.file.ref": "file",
    }


def render(properties: Mapping[str, str]) -> str:
    """The text of a Java properties file, in ASCII with everything else escaped."""
    return "".join(f"{_escape(key)}={_escape(value)}\n" for key, value in properties.items())


def _escape(text: str) -> str:
    # JSON escapes backslashes and what is not ASCII as Java does.
    return re.sub("^ |[=:#!]", r"\\\g<0>", json.dumps(text)[1:-1])
