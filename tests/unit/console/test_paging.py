"""What is shown on a terminal goes through $PAGER, in colours unless NO_COLOR is set; what goes to
a pipe does not."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Mapping

import pytest

PROGRAM = """
from rich.text import Text
from rollstream.console.paging import show_paged
show_paged(Text("worst rollout", style="red"))
"""
SHOUTING = "tr a-z A-Z"
TIMEOUT_S = 60.0


def on_a_terminal(**variables: str) -> str:
    """What the program leaves on a terminal of its own."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(TERM="xterm", **variables),
    )
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:  # The other end is closed.
        pass
    finally:
        os.close(ours)
    assert process.wait(TIMEOUT_S) == 0, shown
    return shown.decode()


def environment(**variables: str) -> Mapping[str, str]:
    ours = {"NO_COLOR", "FORCE_COLOR", "PAGER", "LESS", "COLUMNS"}
    return {k: v for k, v in os.environ.items() if k not in ours} | variables


def test_a_terminal_gets_it_in_colours_through_the_pager() -> None:
    assert "\x1b[31MWORST ROLLOUT\x1b[0M" in on_a_terminal(PAGER=SHOUTING)


def test_no_color_is_honoured() -> None:
    assert on_a_terminal(PAGER=SHOUTING, NO_COLOR="1").strip() == "WORST ROLLOUT"


@pytest.mark.parametrize("pager", ["no-such-pager", "no-such-pager --quietly"])
def test_without_such_a_pager_it_is_printed(pager: str) -> None:
    assert on_a_terminal(PAGER=pager, NO_COLOR="1").strip() == "worst rollout"


def test_a_pipe_gets_it_as_it_is() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        check=True,
        text=True,
        env=environment(PAGER=SHOUTING),
        timeout=TIMEOUT_S,
    )
    assert done.stdout == "worst rollout\n"
