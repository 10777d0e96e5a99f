"""Settings of ready packs that cannot work stop the start, and say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollstream.runtime.config.load import ConfigError, load_config

FILE = """
[kafka]
bootstrap = "localhost:9092"
[store]
root = "file:///data/run"
[environments.math]
[samplers.a]
environments = ["math"]
"""
SECTION = "[samplers.a.ready_packs]\npack_length = 8192\n"
SCHEDULE = "[samplers.a.ready_packs.schedule]\nb_ratio = 0.1\n"
CHANNEL_B = "[samplers.a.ready_packs.channel_b]\n"


@pytest.mark.proves("C2")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SECTION, r"ready_packs.schedule is missing; write .* with b_ratio = 0.5"),
        (
            f"{SECTION}[samplers.a.ready_packs.schedule]\n",
            r"schedule.b_ratio is missing; write b_ratio = 0.5",
        ),
        (
            f"{SECTION}{SCHEDULE}".replace("0.1", "1.5"),
            r"b_ratio = 1.5: must be less than or equal to 1; for example b_ratio = 0.5",
        ),
        (
            f"{SECTION}{SCHEDULE}".replace("0.1", "-0.1"),
            r"b_ratio = -0.1: must be greater than or equal to 0; for example b_ratio = 0.5",
        ),
        (
            f'{SECTION}{SCHEDULE}pattern = ["A", "B"]\n',
            r"schedule: pattern \['A', 'B'\] is not supported.*for example b_ratio = 0.5",
        ),
        (
            f'{SECTION}{SCHEDULE}{CHANNEL_B}rollouts = "colocate"\n',
            r"rollouts 'colocate' is not supported: .* from env workers, .*; leave rollouts out",
        ),
        (
            f'{SECTION}{SCHEDULE}{CHANNEL_B}sync = "adapter"\n',
            r"sync 'adapter' is not supported: .* weight_step of the weights .*; leave sync out",
        ),
        (
            f"{SECTION}{SCHEDULE}".replace("0.1", "true"),
            r"b_ratio = true: must be a number; for example b_ratio = 0.5",
        ),
        (
            f"{SECTION}{SCHEDULE}".replace("0.1", "nan"),
            r"b_ratio = nan: .*; for example b_ratio = 0.5",
        ),
        (
            f"{SECTION}{SCHEDULE}".replace("8192", "0"),
            r"pack_length = 0: must be greater than or equal to 1",
        ),
        (
            f"{SECTION}{SCHEDULE}".replace("8192", "2147483648"),
            r"pack_length = 2147483648: must be less than or equal to 2147483647",
        ),
        (
            f"{SECTION}gradient_accumulation_steps = 32\n{SCHEDULE}",
            r"queue_limit 16 is below gradient_accumulation_steps 32: .*; set it to 32 or more",
        ),
        (
            f"{SECTION}prefetch_target_packs = 17\n{SCHEDULE}",
            r"prefetch_target_packs 17 is above queue_limit 16: .*; lower it, or raise queue_limit",
        ),
    ],
)
def test_settings_that_cannot_work_say_what_to_do(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rollstream.toml"
    path.write_text(FILE + text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_config(path, environ={})


def test_settings_that_work_are_loaded(tmp_path: Path) -> None:
    path = tmp_path / "rollstream.toml"
    path.write_text(f'{FILE}{SECTION}{SCHEDULE}{CHANNEL_B}mode = "step"\n', encoding="utf-8")
    found = load_config(path, environ={}).samplers["a"].ready_packs
    assert found is not None
    assert found.channel_b.mode == "step"
    assert str(found.schedule.exact_b_ratio) == "1/10"
