"""Processes of one machine that attach to a sampler, and what Ray must not do to them."""

from __future__ import annotations

import fcntl
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from harness.attached import attaching
from harness.brokers import until
from harness.forking import told_in_a_fork
from harness.groups import GroupSpec
from harness.ray_world import RayWorld
from harness.sampler_worlds import log_end
from rollstream.sampler import ConfigurationDiffers, Fenced, SamplerClient
from rollstream.sampler.actor.loopback_ray import ADDRESS_FILE, LOOPBACK

pytestmark = [pytest.mark.broker, pytest.mark.proves("F20")]
WAIT_S = 30.0


@pytest.fixture
def world(kafka_bootstrap: str, tmp_path: Path) -> Iterator[RayWorld]:
    made = RayWorld(kafka_bootstrap, tmp_path)
    yield made
    made.close()


@pytest.fixture
def machine() -> Iterator[str]:
    """A temporary folder: who has another one is on another machine, as far as Ray is concerned."""
    folder = tempfile.mkdtemp(prefix="rs-", dir="/tmp")  # Short, since Ray makes sockets there.
    yield folder
    until(lambda: not kept(folder))
    shutil.rmtree(folder, ignore_errors=True)


def kept(machine: str) -> bool:
    """Whether somebody keeps a Ray there."""
    for file in Path(machine).glob(f"rollstream-*/*/{ADDRESS_FILE}"):
        with file.open() as address:
            try:
                fcntl.flock(address, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False


def specs(count: int) -> list[GroupSpec]:
    return [GroupSpec(example_id=f"ex-{i}") for i in range(count)]


def test_processes_that_attach_at_the_same_moment_share_one_actor_that_outlives_each(
    world: RayWorld, machine: str
) -> None:
    world.writer().flush(*specs(4))
    config = world.config_file()
    with ExitStack() as ended:
        processes = [
            ended.enter_context(attaching(world.name, config, TMPDIR=machine)) for _ in range(3)
        ]
        (pid,) = {process.answer() for process in processes}
        assert pid.isdigit()
        first, second, third = processes
        assert first.ask("sampler.resume(None)") == "0"
        uids = second.ask("sampler.next_batch(0, 2, timeout_s=30).uids")
        for ending in (first, second):
            ending.process.send_signal(signal.SIGKILL)
            ending.process.wait()
        assert third.ask("sampler.next_batch(0, 2, timeout_s=30).uids") == uids
        assert third.ask("sampler.stats().pid") == pid
    until(lambda: not kept(machine))
    with attaching(world.name, config, TMPDIR=machine) as later:
        assert later.answer() not in ("", pid)
        assert later.ask("sampler.next_batch(0, 2, timeout_s=30).uids") == uids


def test_looking_from_a_second_process_leaves_the_trainer_alone(
    world: RayWorld, machine: str
) -> None:
    world.writer().flush(*specs(8))
    trainer = world.open()
    batch = trainer.next_batch(trainer.resume(None), 2, timeout_s=WAIT_S)
    written = log_end(world)
    config = world.config_file()
    # One that does not find the trainer's Ray: its actor is another one.
    with attaching(world.name, config, TMPDIR=machine) as onlooker:
        assert onlooker.answer() != str(trainer.stats().pid)
        assert onlooker.ask("sampler.stats().next_step") == "1"
        assert onlooker.ask("sampler.progress().final_step") == "None"
        view = "SamplerView(name, config=config)"
        assert onlooker.ask(f"{view}.batches()[-1].batch_id") == batch.batch_id
        with world.successor() as here:
            assert here.stats().next_step == 1
        assert log_end(world) == written
        trainer.ack(batch)
        trainer.next_batch(1, 2, timeout_s=WAIT_S)
        assert onlooker.ask("sampler.stats().next_step") == "2"
        trainer.checkpointed(0)
        assert onlooker.ask("sampler.progress().final_step") == "0"
        # What decides takes over.
        assert onlooker.ask("sampler.next_batch(2, 2, timeout_s=30).step") == "2"
        with pytest.raises(Fenced, match="taken over"):
            trainer.next_batch(3, 2, timeout_s=WAIT_S)


def test_an_actor_in_a_ray_that_its_trainer_started_itself_is_found(
    world: RayWorld, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.open()  # From here on this process is connected to a Ray.
    monkeypatch.setattr(tempfile, "tempdir", machine)
    pid = world.open().stats().pid
    with attaching(world.name, world.config_file(), TMPDIR=machine) as process:
        assert process.answer() == str(pid)
    assert not kept(machine)


def test_another_configuration_than_the_actors_is_refused_with_the_key_and_both_values(
    world: RayWorld,
) -> None:
    world.open()
    sampler = world.config.samplers[world.name].model_copy(update={"max_policy_lag": 4})
    other = world.config.model_copy(update={"samplers": {world.name: sampler}})
    with pytest.raises(ConfigurationDiffers, match="max_policy_lag = 8, and here it is 4") as at:
        SamplerClient.attach(world.name, config=other)
    key = f"samplers.{world.name}.max_policy_lag"
    assert (at.value.key, at.value.running, at.value.given) == (key, 8, 4)
    world.open().stats()


def test_the_shared_ray_is_for_this_machine_alone_and_gives_way_to_nobody(
    world: RayWorld, machine: str
) -> None:
    """What is used of Ray's private API: where Ray changes, this fails."""
    with attaching(world.name, world.config_file(), TMPDIR=machine) as process:
        actor = psutil.Process(int(process.answer()))
        assert actor.nice() == psutil.Process().nice()
        raylet = actor.parent()
        assert raylet is not None
        keeper = raylet.parent()
        assert keeper is not None
        family = [keeper, *keeper.children(recursive=True)]
        listening = {
            socket.laddr.ip.removeprefix("::ffff:")
            for member in family
            for socket in member.net_connections("inet")
            if socket.status == psutil.CONN_LISTEN
        }
        assert listening == {LOOPBACK}
        programs = {part for member in family for part in member.cmdline() if part.endswith(".py")}
        assert {Path(program).name for program in programs} == {"loopback_ray.py"}


def test_a_child_forked_off_a_process_that_is_connected_to_ray_cannot_attach(
    world: RayWorld,
) -> None:
    sampler = world.open()
    told = told_in_a_fork(lambda: SamplerClient.attach(world.name, config=world.config))
    assert "was forked off one that is connected to Ray" in told
    assert "get_context('spawn')" in told
    assert sampler.stats().pid
