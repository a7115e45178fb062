"""What runs on an event loop must not wait: what would have to says so here, before it begins."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class WouldBlock(Exception):
    """It cannot be done without waiting. Nothing has been done: do it all again, in a thread."""


class _Thread(threading.local):
    forbidden = False


_here = _Thread()


@contextmanager
def forbidden() -> Iterator[None]:
    """In this block, which awaits nothing, whatever would wait raises WouldBlock."""
    before, _here.forbidden = _here.forbidden, True
    try:
        yield
    finally:
        _here.forbidden = before


def is_forbidden() -> bool:
    return _here.forbidden


def check() -> None:
    """To be called before anything that waits: for a server, a disk, a lock that is held long."""
    if _here.forbidden:
        raise WouldBlock
