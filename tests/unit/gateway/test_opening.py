"""Who may write: how the gateway starts with tokens and without, and what it never shows."""

from __future__ import annotations

import pickle
import resource
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.command_line import CONFIG, CommandLine
from harness.step_writers import TOKENS, MemoryStepWriter, gateway_config, gateway_over
from rollstream.gateway import NoTokens, check_open_to_all
from rollstream.runtime.config.load import ConfigError, load_config

TOKEN = "a-token-of-24-characters"


@pytest.mark.parametrize(
    ("gateway", "host", "said"),
    [
        ({}, "127.0.0.1", "allow_anonymous = true"),
        ({"allow_anonymous": True}, "0.0.0.0", "who reaches 0.0.0.0 could"),
        ({"allow_anonymous": True}, "::", "who reaches :: could"),
        ({"allow_anonymous": True}, "gateway.internal", "who reaches gateway.internal could"),
    ],
)
def test_without_tokens_it_does_not_start(gateway: dict[str, Any], host: str, said: str) -> None:
    with pytest.raises(NoTokens, match=said.replace("(", r"\(")):
        check_open_to_all(gateway_config(tokens={}, **gateway).gateway, host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_without_tokens_it_starts_on_a_loopback_address_where_that_is_allowed(host: str) -> None:
    check_open_to_all(gateway_config(tokens={}, allow_anonymous=True).gateway, host)
    check_open_to_all(gateway_config().gateway, "0.0.0.0")


def test_the_command_refuses_before_it_asks_the_broker(tmp_path: Path) -> None:
    done = CommandLine(tmp_path).run("gateway")
    assert done.exit_code == 1
    assert "gateway.tokens is empty, so that everybody who reaches" in done.stderr


def test_it_does_not_start_with_more_connections_than_files_that_it_may_open(
    tmp_path: Path,
) -> None:
    settings = f'[gateway]\nmax_connections = {2**31}\n[gateway.tokens]\nmath = ["{TOKEN}"]\n'
    line = CommandLine(tmp_path, f"{CONFIG}\n{settings}")
    line.create_topics()
    line.stopping.set()
    done = line.run("gateway", "--port", "0")
    assert done.exit_code == 1
    assert f"gateway.max_connections is {2**31}, which needs {2**31 + 256} open" in done.stderr
    assert "LimitNOFILE=" in done.stderr


def test_it_raises_its_limit_of_open_files(tmp_path: Path) -> None:
    line = CommandLine(tmp_path, f'{CONFIG}\n[gateway.tokens]\nmath = ["{TOKEN}"]\n')
    line.create_topics()
    line.stopping.set()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, hard))
    try:
        assert line.run("gateway", "--port", "0").exit_code == 0
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 4_096
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_tokens_come_from_a_variable_too(tmp_path: Path) -> None:
    file = tmp_path / "rollstream.toml"
    file.write_text(CONFIG)
    variables = {"ROLLSTREAM_GATEWAY__TOKENS__MATH": f'["{TOKEN}"]'}
    (token,) = load_config(file, environ=variables).gateway.tokens["math"]
    assert token.get_secret_value() == TOKEN


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ('math = ["two words of a token"]', "none a space"),
        (f'math = "{TOKEN}"', "gateway.tokens.math = (not shown): must be a list"),
        (f'math = ["{TOKEN}", 7]', "gateway.tokens.math.1 = (not shown): must be a text"),
        (f'moth = ["{TOKEN}"]', "gateway.tokens names 'moth', but there is no"),
        (f'math = ["{TOKEN[:15]}"]', "a token of math has 15 characters, and needs 16"),
        (f'math = ["{TOKEN}é"]', "a token of math has 25 characters"),
        ("math = []", "math has no token"),
    ],
)
def test_a_wrong_token_is_refused_and_not_shown(tmp_path: Path, tokens: str, said: str) -> None:
    file = tmp_path / "rollstream.toml"
    file.write_text(f"{CONFIG}\n[gateway.tokens]\n{tokens}\n")
    with pytest.raises(ConfigError) as wrong:
        load_config(file, environ={})
    assert said in str(wrong.value)
    assert TOKEN[:15] not in str(wrong.value)


def test_settings_with_which_no_large_body_could_be_taken_are_refused() -> None:
    for name in ("max_pending_bytes", "max_pending_bytes_per_environment"):
        with pytest.raises(ValidationError, match=f"{name} 2048 is below max_body_bytes"):
            gateway_config(max_body_bytes=4096, **{name: 2048})


def test_no_token_is_in_what_a_gateway_holds_or_prints() -> None:
    config = gateway_config()
    app = gateway_over(MemoryStepWriter())
    held = pickle.dumps(vars(app.state.gateway.tokens))
    for token in TOKENS.values():
        assert token.encode() not in held
        assert token not in repr(config)
        assert token not in config.model_dump_json()
