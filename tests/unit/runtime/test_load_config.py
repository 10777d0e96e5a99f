"""The configuration: one file, all of it checked, with errors that name what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollstream.runtime.config.load import ConfigError, configured, load_config
from rollstream.runtime.config.sections import KafkaConfig, RollstreamConfig
from rollstream.streams.topics.layout import RECORD_BYTES_MAX

MINIMAL = """
[kafka]
bootstrap = "localhost:9092"
[store]
root = "file:///data/run-17"
[environments.math]
"""
SAMPLER = """
[samplers.trainer-a]
environments = ["math"]
"""


def load(folder: Path, text: str, **variables: str) -> RollstreamConfig:
    file = folder / "rollstream.toml"
    file.write_text(text, encoding="utf-8")
    return load_config(file, environ=variables)


def refusal(folder: Path, text: str, **variables: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(folder, text, **variables)
    return [line.removeprefix(f"{folder}/") for line in str(caught.value).splitlines()]


def test_minimal_file_takes_every_other_key_from_its_default(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL)
    assert config.kafka.bootstrap == "localhost:9092"
    assert config.environments["math"].target_group_size == 8
    assert config.samplers == {}


def test_a_configuration_that_is_shown_tells_no_password() -> None:
    kafka = KafkaConfig(bootstrap="kafka:9092", client={"sasl.password": "hunter2"})
    assert "hunter2" not in f"{kafka!r} {kafka}"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (
            "target_group_sise = 4",
            "target_group_sise = 4: there is no such key; did you mean target_group_size?",
        ),
        (
            'target_group_size = "four"',
            'target_group_size = "four": must be a whole number; for example target_group_size = 8',
        ),
        (
            "target_group_size = 4.0",
            "target_group_size = 4.0: must be a whole number; for example target_group_size = 8",
        ),
        (
            'seal_timeout_s = "30"',
            'seal_timeout_s = "30": must be a number; for example seal_timeout_s = 300.0',
        ),
        (
            "partitions = 0",
            "partitions = 0: must be greater than or equal to 1; for example partitions = 4",
        ),
        (
            "max_flush_bytes = 1073741825",
            "max_flush_bytes = 1073741825: must be less than or equal to 1073741824; "
            "for example max_flush_bytes = 67108864",
        ),
        (
            "max_pending_bytes = 33554431",
            "max_pending_bytes = 33554431: must be greater than or equal to 33554432; "
            "for example max_pending_bytes = 268435456",
        ),
        (
            'grouping = "loose"',
            "grouping = \"loose\": must be 'strict' or 'mixed'; for example grouping = \"strict\"",
        ),
        (
            "accept_policy_versions = 3",
            "accept_policy_versions = 3: must be a list in brackets",
        ),
        (
            "partitions = true",
            "partitions = true: must be a whole number; for example partitions = 4",
        ),
        (
            "max_unreadable_share = false",
            "max_unreadable_share = false: must be a number; "
            "for example max_unreadable_share = 0.1",
        ),
        ("retain_after_hours = true", "retain_after_hours = true: must be a number"),
    ],
)
def test_wrong_setting_names_file_key_value_and_what_to_write(
    tmp_path: Path, line: str, complaint: str
) -> None:
    assert refusal(tmp_path, MINIMAL + line) == [f"rollstream.toml: environments.math.{complaint}"]


def test_least_of_pending_bytes_holds_two_of_the_largest_records(tmp_path: Path) -> None:
    config = load(tmp_path, f"{MINIMAL}max_pending_bytes = {2 * RECORD_BYTES_MAX}")
    assert config.environments["math"].max_pending_bytes == 2 * RECORD_BYTES_MAX
    (line,) = refusal(tmp_path, f"{MINIMAL}max_pending_bytes = {2 * RECORD_BYTES_MAX - 1}")
    assert f"greater than or equal to {2 * RECORD_BYTES_MAX}" in line


def test_unknown_key_without_a_close_match_lists_the_known_keys(tmp_path: Path) -> None:
    (line,) = refusal(tmp_path, MINIMAL.replace("[store]", "qqq = 1\n[store]"))
    assert line.startswith("rollstream.toml: kafka.qqq = 1: there is no such key; remove it, or ")
    assert "namespace" in line


def test_settings_with_which_nothing_could_progress_are_refused(tmp_path: Path) -> None:
    (line,) = refusal(tmp_path, MINIMAL + "min_group_size = 9")
    assert "environments.math: min_group_size 9 is above target_group_size 8" in line
    assert "lower it" in line


@pytest.mark.parametrize(
    "wrong", ["accept_policy_versions = []", 'accept_policy_versions = ["a", ""]']
)
def test_policy_versions_with_which_nothing_is_admitted_are_refused(
    tmp_path: Path, wrong: str
) -> None:
    (line,) = refusal(tmp_path, MINIMAL + wrong)
    assert "environments.math.accept_policy_versions" in line


def test_a_preferred_policy_version_without_a_name_is_refused(tmp_path: Path) -> None:
    sampler = '[samplers.a]\nenvironments = ["math"]\nprefer_policy_versions = [""]\n'
    (line,) = refusal(tmp_path, f"{MINIMAL}{sampler}")
    assert "samplers.a.prefer_policy_versions" in line


@pytest.mark.parametrize("hours", ["0", "0.0", "-1"])
def test_retention_as_soon_as_groups_are_done_with_is_refused(tmp_path: Path, hours: str) -> None:
    (line,) = refusal(tmp_path, f"{MINIMAL}retain_after_hours = {hours}")
    assert "environments.math: retain_after_hours " in line
    assert "leave it out" in line


@pytest.mark.parametrize(
    "root",
    [
        "data/run-17",
        "/data/run-17",
        "file:data",
        "s3:///run",
        "s3://Bucket/run",
        "ftp://bucket/run",
    ],
)
def test_root_that_no_process_could_open_is_refused(tmp_path: Path, root: str) -> None:
    (line,) = refusal(tmp_path, MINIMAL.replace("file:///data/run-17", root))
    assert line == (
        f"rollstream.toml: store.root: '{root}' is no root of a store; write "
        "file:///an/absolute/folder, s3://bucket/prefix or gs://bucket/prefix"
    )


@pytest.mark.parametrize(
    "line",
    [
        'root = "s3://AKIA:hunter2@bucket/run"',
        'root = "s3://bucket/run?secret=hunter2"',
        'root = "s3://bucket/run"\nendpoint = "http://AKIA:hunter2@minio:9000"',
    ],
)
def test_secrets_in_the_store_s_section_are_refused_and_not_shown(
    tmp_path: Path, line: str
) -> None:
    told = "\n".join(refusal(tmp_path, MINIMAL.replace('root = "file:///data/run-17"', line)))
    assert "AWS_ACCESS_KEY_ID" in told
    assert "hunter2" not in told


@pytest.mark.parametrize("root", ["s3://bucket", "s3://bucket/run-17/a", "gs://my-bucket/run"])
def test_root_in_an_object_store_is_taken(tmp_path: Path, root: str) -> None:
    assert load(tmp_path, MINIMAL.replace("file:///data/run-17", root)).store.root == root


@pytest.mark.parametrize(
    "address", ["localhost:99999", "localhost:", "a b:9092", "a:1,,b:2", "http://a:9092"]
)
def test_address_that_names_no_broker_is_refused(tmp_path: Path, address: str) -> None:
    (line,) = refusal(tmp_path, MINIMAL.replace("localhost:9092", address))
    assert line.startswith("rollstream.toml: kafka.bootstrap: ")
    assert f"in '{address}' is no broker's address; write host:port" in line


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("acks", "0", "before every replica has it"),
        ("enable.idempotence", "false", "an owner's record is sent once"),
        ("enable.auto.commit", "true", "sealers commit offsets themselves"),
        ("partitioner", "consistent", "partitions where no sealer takes them"),
        ("bootstrap.servers", "other:9092", "kafka.bootstrap names the brokers"),
    ],
)
def test_client_property_that_breaks_a_promise_is_refused(
    tmp_path: Path, name: str, value: str, why: str
) -> None:
    client = f'[kafka.client]\n"{name}" = "{value}"\n'
    (line,) = refusal(tmp_path, MINIMAL + client)
    assert line.startswith(f'rollstream.toml: kafka.client: {name} = "{value}": ')
    assert why in line
    assert line.endswith("; remove it")


def test_client_property_as_it_is_anyway_is_taken(tmp_path: Path) -> None:
    client = '[kafka.client]\nacks = "all"\n"security.protocol" = "SSL"\n'
    assert load(tmp_path, MINIMAL + client).kafka.client["acks"] == "all"


def test_sampler_of_an_unknown_environment_is_refused(tmp_path: Path) -> None:
    (line,) = refusal(tmp_path, MINIMAL + SAMPLER.replace('"math"', '"maths"'))
    assert "samplers.trainer-a.environments names 'maths'" in line


def test_one_error_lists_every_problem(tmp_path: Path) -> None:
    lines = refusal(tmp_path, "kafka = 3\n[samplers.a]\n")
    assert lines == [
        "rollstream.toml: kafka = 3: must be a section; for example [kafka] with bootstrap = "
        '"localhost:9092"',
        'rollstream.toml: store is missing; write [store] with root = "file:///data/run-17"',
        "rollstream.toml: environments is missing; write [environments.math]",
        'rollstream.toml: samplers.a.environments is missing; write environments = ["math"]',
    ]


def test_missing_file_names_the_sections_to_write(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no such file; write one with .*\[kafka\]"):
        load_config(tmp_path / "absent.toml", environ={})


@pytest.mark.parametrize("raw", [b"[kafka\n", b"\xff\xfe"])
def test_file_that_is_not_toml_is_refused(tmp_path: Path, raw: bytes) -> None:
    file = tmp_path / "rollstream.toml"
    file.write_bytes(raw)
    with pytest.raises(ConfigError, match="is not TOML"):
        load_config(file, environ={})


def test_variables_override_keys_whatever_their_case(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        MINIMAL + SAMPLER,
        ROLLSTREAM_KAFKA__BOOTSTRAP="kafka:9092",
        ROLLSTREAM_SAMPLERS__TRAINER_A__SEED="7",
        rollstream_environments__math__accept_policy_versions='["step-1", "step-2"]',
        ROLLSTREAM_KAFKA__CLIENT='{"sasl.username" = "me"}',
        ROLLSTREAM_DATA="names no section, so it is none of ours",
    )
    assert config.kafka.bootstrap == "kafka:9092"
    assert config.samplers["trainer-a"].seed == 7
    assert config.environments["math"].accept_policy_versions == ("step-1", "step-2")
    assert config.kafka.client == {"sasl.username": "me"}


def test_variable_may_set_a_key_that_the_file_lacks(tmp_path: Path) -> None:
    without = MINIMAL.replace('bootstrap = "localhost:9092"', "")
    assert load(tmp_path, without, ROLLSTREAM_KAFKA__BOOTSTRAP="a:1").kafka.bootstrap == "a:1"


def test_wrong_variable_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path, MINIMAL, ROLLSTREAM_KAFKA__TIMEOUT_S="soon") == [
        'rollstream.toml: kafka.timeout_s = "soon" (from ROLLSTREAM_KAFKA__TIMEOUT_S): '
        "must be a number; for example timeout_s = 30.0"
    ]
    (line,) = refusal(tmp_path, MINIMAL, ROLLSTREAM_KAFKA__BOOTSRAP="x")
    assert "(from ROLLSTREAM_KAFKA__BOOTSRAP)" in line
    assert "did you mean bootstrap?" in line


@pytest.mark.parametrize(
    ("key", "ours"), [("rng_seed", "seed"), ("max_queue_size", "capacity_groups")]
)
def test_the_key_of_another_system_is_refused_with_ours(
    tmp_path: Path, key: str, ours: str
) -> None:
    sampler = f'{MINIMAL}\n[samplers.trainer-a]\nenvironments = ["math"]\n{key} = 3\n'
    (line,) = refusal(tmp_path, sampler)
    assert f"{key} = 3: there is no such key; did you mean {ours}?" in line


def test_variable_that_leads_into_a_value_is_named(tmp_path: Path) -> None:
    (line,) = refusal(tmp_path, MINIMAL, ROLLSTREAM_KAFKA__BOOTSTRAP__HOST="x")
    assert line.startswith("ROLLSTREAM_KAFKA__BOOTSTRAP__HOST='x': kafka.bootstrap is")


@pytest.mark.proves("F20")
def test_a_configuration_that_is_no_path_says_what_to_give() -> None:
    mapping: Any = {"kafka": {}}
    with pytest.raises(ConfigError, match=r"config is {'kafka': {}}; give the path of a TOML file"):
        configured(mapping)


@pytest.mark.proves("E3")
@pytest.mark.parametrize(
    ("sampler", "problem"),
    [
        ('environments = ["math"]\nmax_policy_lag = -1', "max_policy_lag -1 is no limit"),
        ('environments = ["code"]', "which does not serve math; add math to"),
        (None, r"there is no \[samplers.trainer-a\]; add the section"),
    ],
)
def test_a_sampler_for_which_nothing_is_too_old_settles_nothing(
    sampler: str | None, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "rollstream.toml"
    text = (
        '[kafka]\nbootstrap = "localhost:9092"\n[store]\nroot = "file:///data"\n'
        '[environments.code]\n[environments.math]\nfresh_for = "trainer-a"\n'
    )
    path.write_text(text + (f"[samplers.trainer-a]\n{sampler}\n" if sampler else ""))
    with pytest.raises(ConfigError, match=f"fresh_for names 'trainer-a', .*{problem}"):
        load_config(path)
    path.write_text(text + '[samplers.trainer-a]\nenvironments = ["math"]\n')
    assert load_config(path).environments["math"].fresh_for == "trainer-a"
