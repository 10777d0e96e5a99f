"""A child process that never outlives this one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
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
        self._command = [
            *(sys.executable, "-I", "-S", str(bound_to_parent.__file__), str(os.getpid())),
            *command,
        ]
        self._cwd = cwd
        self._output = output
        self._keep_open = tuple(keep_open)
        self._on_exit = on_exit
        self._started = threading.Event()
        self._ended = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._failure: OSError | None = None
        threading.Thread(target=self._live, name="bound-child", daemon=True).start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Waits for its end. Returns the exit code, negative for a signal; None at the time-out."""
        assert self._process is not None
        return self._process.returncode if self._ended.wait(timeout_s) else None

    def signal(self, number: int) -> None:
        """Sends a signal; does nothing once the child has ended."""
        assert self._process is not None
        self._process.send_signal(number)

    def _live(self) -> None:
        try:
            with self._output.open("wb") as output:
                self._process = subprocess.Popen(
                    self._command,
                    cwd=self._cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=self._keep_open,
                    # Ctrl-C goes to this process alone, which then stops the child.
                    start_new_session=True,
                )
        except OSError as failure:
            self._failure = failure
            self._on_exit()
            self._started.set()
            return
        self._started.set()
        self._process.wait()
        self._on_exit()
        self._ended.set()
