"""``drain``: what a store has decided, written into the ledger."""

from __future__ import annotations

import argparse
import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

from django.core.management.base import OutputWrapper
from django.db import close_old_connections

from token_allowance import conf
from token_allowance.exceptions import StoreUnavailable

HELP = "Write what Redis has decided into the ledger, once or with --loop for ever."
EVERY_SECONDS = 1.0
MOST_SECONDS = 30.0  # between two tries while something is down


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--loop", action="store_true", help="Go on until told to end (SIGTERM or SIGINT)."
    )
    parser.add_argument(
        "--every",
        type=float,
        default=EVERY_SECONDS,
        metavar="SECONDS",
        help="With --loop: between two rounds; 1.",
    )


def run(out: OutputWrapper, options: dict[str, Any]) -> None:
    if options["loop"]:
        with told_to_end() as end:
            loop(out, options["every"], end)
    else:
        once(out)


def once(out: OutputWrapper) -> None:
    store = conf.store()
    if store.behind_seconds() is None:
        out.write(f"drain: {type(store).__name__} writes the ledger itself.")
    else:
        out.write(f"drain: {_said(store.drain())}.")


def loop(out: OutputWrapper, every_seconds: float, end: threading.Event) -> None:
    """Drain until told to end. What is down is asked again, ever more rarely."""
    pause = every_seconds
    while not end.is_set():
        try:
            if taken := conf.store().drain():
                out.write(f"drain: {_said(taken)}.")
            pause = every_seconds
        except StoreUnavailable as error:
            out.write(f"drain: {error}")
            pause = min(MOST_SECONDS, max(every_seconds, 2 * pause))
        close_old_connections()
        out.flush()
        end.wait(pause)


@contextlib.contextmanager
def told_to_end() -> Iterator[threading.Event]:
    """An event that is set by a signal to end, so that a round in work is finished first."""
    end = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield end
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: end.set()) for number in numbers]
    try:
        yield end
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _said(taken: int) -> str:
    return f"{taken:,} {'event' if taken == 1 else 'events'} written into the ledger"
