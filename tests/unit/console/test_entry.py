"""The script's errors for missing extras and wrong paths, and the progress of Kafka's start."""

from __future__ import annotations

import errno
from importlib.machinery import ModuleSpec
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from rollstream.console import entry
from rollstream.console.app import build
from rollstream.console.fetching import Fetching
from rollstream.console.status_view import age


def test_missing_extra_is_named_with_what_to_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find_spec(name: str) -> ModuleSpec | None:
        return None if name in ("typer", "rich") else ModuleSpec(name, None)

    monkeypatch.setattr(entry, "find_spec", find_spec)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "rollstream: the command line needs typer, rich; "
        "in the clone of Rollstream, run: pip install '.[console]'\n"
    )


def test_counted_progress_is_a_bar_and_other_messages_are_lines() -> None:
    out = StringIO()
    with Fetching(Console(file=out, width=100)) as fetching:
        fetching("formatting kafka")
        fetching("fetching Kafka 4.3.0: 0 of 45 files")
        fetching("fetching Kafka 4.3.0: 45 of 45 files")
    assert "formatting kafka" in out.getvalue()
    assert "45/45 files" in out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "never"), (0.04, "0.0 s"), (59.9, "59.9 s"), (120, "2 min")],
)
def test_ages_have_a_unit_that_fits(seconds: float | None, words: str) -> None:
    assert age(seconds) == words


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("jgo.core", "needs jgo; in the clone of Rollstream, run: pip install '.[local]'"),
        ("oops", ""),
    ],
)
def test_command_whose_extra_is_missing_names_it(module: str, message: str) -> None:
    app = build()

    @app.command("broken")
    def _broken() -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    done = CliRunner().invoke(app, ["broken"])
    assert done.exit_code == 1
    assert message in done.stderr
    assert isinstance(done.exception, SystemExit if message else ModuleNotFoundError)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = CliRunner().invoke(build(), ["up", "--data", str(tmp_path / "file" / "kafka")])
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"rollstream: {tmp_path / 'file'}")


def test_a_full_disk_below_the_output_is_one_line() -> None:
    app = build()

    @app.command("prints")
    def _prints() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    done = CliRunner().invoke(app, ["prints"])
    assert done.exit_code == 1
    assert done.stderr.startswith("rollstream: no space is left for what this command writes")


def test_ctrl_c_while_commands_are_loaded_shows_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupted)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 130


def test_an_impossible_port_is_refused() -> None:
    assert CliRunner().invoke(build(), ["up", "--port", "99999"]).exit_code == 2
