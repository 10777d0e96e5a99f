"""``python -m chaos.scoring CONFIG PHASES``: a verifier whose scores differ at each try, and which
shows what it is at.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from chaos.phases import Phases, phases_of
from chaos.settings import ENVIRONMENT, VERIFIER
from rollstream.consumers import SealedGroups
from rollstream.producers import BrokerUnavailable, BufferFull, ScoreProducer, ScoresNotDelivered
from rollstream.runtime.config.load import load_config
from rollstream.runtime.shutdown import stop_on_signals
from rollstream.schemas.records import RolloutGroup

LOOK_S = 0.5
AGAIN = 0.1  # Of the groups are scored twice at once, as where an answer is lost.


def score(groups: list[RolloutGroup], scores: ScoreProducer, phases: Phases) -> None:
    """Returns once the scores of all of them are in the log."""
    while True:
        try:
            with phases.of("score: publish"):
                again = [group for group in groups if random.random() < AGAIN]
                for group in (*groups, *again):
                    rewards = {one.rollout_uid: random.random() for one in group.rollouts}
                    scores.upsert_scores(group.id, rewards, attempt="1")
            with phases.of("score: flush"):
                scores.flush()
            return
        except (BrokerUnavailable, BufferFull, ScoresNotDelivered):
            continue  # All of them again: what is in the log counts once.


def main(config_file: Path, phases_file: Path) -> None:
    stopping, phases = stop_on_signals(), phases_of(phases_file)
    config = load_config(config_file)
    with (
        SealedGroups(VERIFIER, [ENVIRONMENT], config=config, only_awaiting=True) as groups,
        ScoreProducer(config.kafka.bootstrap, environment=ENVIRONMENT, scorer=VERIFIER) as scores,
    ):
        while not stopping.is_set():
            try:
                found = groups.poll(LOOK_S)
                if found:
                    score(found, scores, phases)
                    with phases.of("score: commit"):
                        groups.commit()
            except BrokerUnavailable:
                continue  # What is not committed is handed out again, or committed next time.


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
