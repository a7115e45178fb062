"""Becomes a server that dies with the process that asked for it, even by SIGKILL.

    python -I -S launcher.py PARENT_PID SIGNAL UID GID program [argument ...]

It stands in front of the server because the same steps between fork and exec (`preexec_fn`) are
unsafe, and warned about, once the parent has threads. The order matters: a change of user clears
the death signal.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int, signal_number: int) -> None:
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None:  # not Linux: atexit and the test plugin still stop the server
        return
    prctl(PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != parent_pid:
        sys.exit("the parent is gone already")


def main(parent_pid: str, signal_number: str, uid: str, gid: str, *command: str) -> None:
    if os.geteuid() == 0 and int(uid) != 0:
        os.setgroups([])
        os.setgid(int(gid))
        os.setuid(int(uid))
    die_with_parent(int(parent_pid), int(signal_number))
    os.execv(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
