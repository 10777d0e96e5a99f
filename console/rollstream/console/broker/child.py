"""A child process that never outlives this one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

from rollstream.console.broker import bound_to_parent


class BoundChild:
    """A program that is killed when this process ends, however it ends (kill -9 included).

    The kernel binds a child to the *thread* that forked it, not to the process. So each child has a
    thread of its own, which forks it and waits for its end; the thread that makes this object may
    end before.

    Args:
        command: the program by absolute path, and its arguments.
        cwd: the folder to run in.
        output: file for its stdout and stderr, truncated first.
        keep_open: file descriptors that the child inherits.
        on_exit: called in that thread once the child has ended.

    Raises:
        OSError: the program could not be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        output: Path,
        keep_open: Sequence[int] = (),
        on_exit: Callable[[], None] = lambda: None,
    ) -> None:
        starter = (sys.executable, "-I", "-S", str(bound_to_parent.__file__), str(os.getpid()))
        started: Future[subprocess.Popen[bytes]] = Future()
        self._ended = threading.Event()

        def live() -> None:
            try:
                with output.open("wb") as file:
                    process = subprocess.Popen(
                        [*starter, *command],
                        cwd=cwd,
                        stdin=subprocess.DEVNULL,
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        pass_fds=tuple(keep_open),
                        # Ctrl-C goes to this process alone, which then stops the child.
                        start_new_session=True,
                    )
            except OSError as failure:
                on_exit()
                started.set_exception(failure)
                return
            started.set_result(process)
            process.wait()
            on_exit()
            self._ended.set()

        threading.Thread(target=live, name="bound-child", daemon=True).start()
        self._process = started.result()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Waits for its end. Returns the exit code, negative for a signal; None at the time-out."""
        return self._process.returncode if self._ended.wait(timeout_s) else None

    def signal(self, number: int) -> None:
        """Sends a signal; does nothing once the child has ended."""
        self._process.send_signal(number)
