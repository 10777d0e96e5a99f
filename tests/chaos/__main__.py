"""``python -m chaos``: real processes on a real Kafka, killed and stopped under a seed while
rollouts are published, sealed and trained on; then everything is read once more.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import ray

from chaos.fleet import Fleet, members
from chaos.killing import VICTIMS, Killer, Server
from chaos.producing import confirmed
from chaos.settings import BATCH_GROUPS, DRAIN_S, ENVIRONMENT, SAMPLER, config_text
from chaos.training import Journal, attach
from chaos.verdict import Verdict, unscored, verdict
from harness.kafka import start_kafka
from harness.s3_server import s3_server
from rollstream.consumers import audit, create_deployment
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.config.load import load_config
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.config.store import StoreConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler.actor.loopback_ray import RAY_NAMESPACE
from rollstream.sampler.api.client import actor_name

KILLS = 20
STORES = ("disk", "s3")
BROKER_START_S = 120.0  # On a machine that does much else.
SHOWN_MAX = 5
START_S = 300.0  # Until the first batches were trained on; only a hang takes so long.
LOOK_EVERY_S = 0.5
TESTS = Path(__file__).resolve().parents[1]


def run(folder: Path, kills: int, seed: int, only: str, store: str) -> bool:
    """Whether everything held."""
    clock = SystemClock()
    with ExitStack() as stack:
        kafka = stack.enter_context(start_kafka(folder / "kafka"))

        def restart_kafka() -> None:
            kafka.wait()
            kafka.start(BROKER_START_S)

        servers = {"broker": Server(lambda: kafka.pid, restart_kafka)}
        root = StoreConfig(root=(folder / "store").as_uri())
        if store == "s3":
            s3 = stack.enter_context(s3_server(folder / "s3"))
            os.environ.update(s3.variables)
            servers["store"] = Server(lambda: s3.pid, s3.restart)
            root = s3.store("chaos")
        (folder / "rollstream.toml").write_text(config_text(kafka.bootstrap, root))
        config = load_config(folder / "rollstream.toml")
        create_deployment(config)
        fleet = Fleet(folder, members(folder, kafka.bootstrap))
        # A client of this process keeps the Ray in which the sampler's actor runs.
        with attach(folder / "rollstream.toml", folder / "sampler.phases"):
            try:
                fleet.start()
                _wait_for_batches(folder)
                killer = Killer(seed, fleet, servers, folder / "sampler.phases", clock, only)
                begun_s, before = clock.monotonic_s(), _confirmed(folder)
                killer.run(kills, _say)
                seconds = clock.monotonic_s() - begun_s
                rate = (_confirmed(folder) - before) / seconds
                _say(f"{kills} kills in {seconds:.0f} s; reading everything once more …")
                fleet.stop("producer")
                _drain(config)
                fleet.stop("verifier")
                fleet.stop("trainer")
                fleet.stop("sealer")
            finally:
                fleet.close()
                ray.kill(ray.get_actor(actor_name(SAMPLER, config), namespace=RAY_NAMESPACE))
            begun_s = clock.monotonic_s()
            found = verdict(config, folder)
            _say(f"read in {clock.monotonic_s() - begun_s:.0f} s")
    found.problems += fleet.unexpected
    _print(found, killer, rate)
    return found.holds


def _wait_for_batches(folder: Path) -> None:
    deadline = Deadline(START_S)
    while not Journal(folder / "trainer.journal").saved:
        assert not deadline.passed(), f"nothing was trained on in {START_S:.0f} s; see {folder}"
        deadline.wait(LOOK_EVERY_S)


def _confirmed(folder: Path) -> int:
    return sum(confirmed(journal) for journal in folder.glob("producer-*.journal"))


def _drain(config: RollstreamConfig) -> None:
    """Waits until nothing is pending, and every group has its scores; what still is after
    ``DRAIN_S``, the verdict names."""
    deadline = Deadline(DRAIN_S)
    while not deadline.passed():
        if not audit(config).environment(ENVIRONMENT).pending and not unscored(config):
            break
        deadline.wait(LOOK_EVERY_S)


def _print(found: Verdict, killer: Killer, rate: float) -> None:
    for what in (*found.problems[:SHOWN_MAX], *found.lost[:SHOWN_MAX], *found.twice[:SHOWN_MAX]):
        _say(what)
    if found.differing:
        _say(f"steps whose bytes differ: {found.differing[:SHOWN_MAX]}")
    for what, count in sorted(killer.hits.items()):
        _say(f"{count:>5} × {what}")
    _say(
        f"{sum(killer.hits.values()):,} kills, {found.rollouts:,} rollouts "
        f"({rate:,.0f}/s meanwhile), {len(found.lost):,} lost, {len(found.twice):,} twice; "
        f"{found.steps:,} steps of {BATCH_GROUPS} groups, asked again {found.given_again:,} times, "
        f"{len(found.differing):,} steps whose bytes differ; {found.late:,} groups scored late, "
        f"{found.scored_again:,} of them again with other results and to no effect; "
        f"{len(found.problems):,} other problems"
    )


def _say(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", choices=STORES, default=STORES[0], help="where files go")
    parser.add_argument("--only", choices=VICTIMS, default="", help="kill these alone")
    args = parser.parse_args()
    if args.only == "store" and args.store != "s3":
        parser.error("a store on disk is no process; add --store s3")
    # Short, since Ray makes sockets in it; a Ray of the run's own, whose actors import the tests.
    folder = Path(tempfile.mkdtemp(prefix="rs-"))
    os.environ["TMPDIR"], tempfile.tempdir = str(folder), None
    paths = (str(TESTS), os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    holds = run(folder, args.kills, args.seed, args.only, args.store)
    if holds:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        _say(f"logs and files: {folder}")
    return not holds


if __name__ == "__main__":
    sys.exit(main())
