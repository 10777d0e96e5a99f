"""Replaces itself with a program that the kernel kills when the parent dies, even by kill -9.

Run as ``python bound_to_parent.py PARENT_PID PROGRAM ARGUMENT…``. It asks the kernel from within
the new process, so that the parent runs no code between fork and exec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # from linux/prctl.h; it survives execve


def main() -> None:
    """Binds this process to its parent, then executes the program."""
    parent = int(sys.argv[1])
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        sys.exit("the parent has died meanwhile")
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
