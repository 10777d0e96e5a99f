"""``python -m harness.sealer_process``: a sealer as a process of its own, with a kill point."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.kill_points import KillPoint, RetentionPoint, arm, arm_retention, kill_process
from rollstream.consumers import Sealer
from rollstream.consumers.sealing import STEPS, Flush, FlushStep
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.shutdown import stop_on_signals
from rollstream.store import open_store
from rollstream.streams.kafka import KafkaBroker

TESTS = Path(__file__).resolve().parent.parent
EXIT_TIMEOUT_S = 150.0  # A busy machine is slow; the test's own time-out comes soon after.


class SealerProcess:
    """The parent's handle.

    Args:
        config: of the sealer.
        kill_at: where it kills itself, at this ``passage``, from 1.
        stop_before: a step before which it stops itself (SIGSTOP), the first time.
    """

    def __init__(
        self,
        config: RollstreamConfig,
        *,
        kill_at: KillPoint | RetentionPoint | None = None,
        passage: int = 1,
        stop_before: str = "",
    ) -> None:
        orders = {
            "config": config.model_dump(mode="json"),
            "kill_at": kill_at,
            "passage": passage,
            "stop_before": stop_before,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "harness.sealer_process", json.dumps(orders)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), *sys.path))},
            stdout=subprocess.DEVNULL,
        )

    def wait(self) -> int:
        """Until it has ended; its return code (negative: the signal)."""
        return self.process.wait(EXIT_TIMEOUT_S)

    def wait_stopped(self) -> None:
        """Until it has stopped itself."""
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"it ended instead: {status}"

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """SIGTERM: it drains and leaves."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def close(self) -> None:
        """Whatever state it is in."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(EXIT_TIMEOUT_S)


def _stopping_before(name: str) -> tuple[FlushStep, ...]:
    stopped: list[str] = []

    def stop_once(step: FlushStep) -> FlushStep:
        def run(flush: Flush) -> None:
            if not stopped:
                stopped.append(step.name)
                os.kill(os.getpid(), signal.SIGSTOP)
            step.run(flush)

        return step._replace(run=run)

    return tuple(stop_once(step) if step.name == name else step for step in STEPS)


def main(orders: dict[str, Any]) -> None:
    config = RollstreamConfig.model_validate(orders["config"])
    stopping = stop_on_signals()
    with KafkaBroker(config.kafka.bootstrap, config.kafka.client) as broker:
        blobs = open_store(config.store.root)
        steps = STEPS
        if orders["kill_at"]:
            at, passage = orders["kill_at"], orders["passage"]
            if at in list(RetentionPoint):
                where = RetentionPoint(at)
                armed = arm_retention(where, broker, blobs, kill_process, passage=passage)
            else:
                armed = arm(KillPoint(at), broker, blobs, kill_process, passage=passage)
            sealer = Sealer(config, broker=armed.broker, store=armed.blobs, steps=armed.steps)
        else:
            if orders["stop_before"]:
                steps = _stopping_before(orders["stop_before"])
            sealer = Sealer(config, broker=broker, store=blobs, steps=steps)
        sealer.run(stopping)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
