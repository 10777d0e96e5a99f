"""The verifier: scores the sealed groups of the task whose replicas publish no rewards."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

from examples.demo import settings
from examples.demo.tasks import load_tasks
from examples.demo.tokens import decode
from rollstream.consumers import SealedGroups
from rollstream.producers import ScoreProducer
from rollstream.runtime.config.load import load_config
from rollstream.runtime.shutdown import stop_on_signals

_STOP_WITHIN_S = 1.0


def run(path: Path, stopping: threading.Event) -> None:
    """Until it is told to stop. Killed at any point, its successor leaves no group out."""
    config = load_config(path)
    (task,) = load_tasks([settings.SCORED_LATE], settings.PROBLEMS_PER_TASK, settings.SEED)
    problems = {problem.example_id: problem for problem in task.problems}
    with (
        SealedGroups("verifier", [task.name], config=config, only_awaiting=True) as groups,
        ScoreProducer(
            config.kafka.bootstrap, environment=task.name, scorer="reasoning-gym"
        ) as scores,
    ):
        while not stopping.is_set():
            for group in groups.poll(_STOP_WITHIN_S):
                rewards = {
                    rollout.rollout_uid: task.score(
                        problems[rollout.example_id], decode(rollout.output_tokens.tolist())
                    )
                    for rollout in group.rollouts
                }
                scores.upsert_scores(group.id, rewards, attempt="1")
            scores.flush()  # First the scores are in the log,
            groups.commit()  # then the groups are done with.


def main() -> None:
    """The process: ``python -m examples.demo.verifier --config …``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    run(parser.parse_args().config, stop_on_signals())


if __name__ == "__main__":
    main()
