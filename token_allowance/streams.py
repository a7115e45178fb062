"""Streams in flight, so that a switch can cut them: also one on which nothing arrives.

A thread looks at the switches about once a second while streams are open. A stream that is to be
cut has its connection shut down, which wakes whoever waits for its next bytes. One that shares its
connection (HTTP/2), or has none that we can see (a mock), ends at its next bytes instead.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from django.db import connections
from django.utils import timezone

from token_allowance import policy
from token_allowance.exceptions import SwitchEngaged
from token_allowance.plans import Plan, stopped
from token_allowance.policy import Policy
from token_allowance.stores.connections import inside_testcase

logger = logging.getLogger("token_allowance")
EVERY_SECONDS = 0.8  # so that with the time to look it is at least once a second
LINGER_SECONDS = 5.0  # for the next stream


class Stream:
    """One answer on its way to its caller; ``refusal`` is set when it has been cut."""

    def __init__(self, plan: Plan, extensions: Mapping[str, Any]) -> None:
        self.plan = plan
        self.refusal: SwitchEngaged | None = None
        shared = extensions.get("http_version") == b"HTTP/2"
        self._connection = None if shared else extensions.get("network_stream")

    def cut(self, refusal: SwitchEngaged) -> None:
        self.refusal = refusal
        if self._connection is not None:
            with contextlib.suppress(Exception):  # it has ended by itself
                shut(self._connection.get_extra_info("socket"))


class Watch:
    """The streams of one process, and the thread that looks after them."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._streams: set[Stream] = set()
        self._lock = threading.RLock()  # the collector may end a stream where another begins
        self._running = False

    def enter(self, stream: Stream) -> None:
        with self._lock:
            self._streams.add(stream)
            if not self._running and _may_look():
                try:
                    name = "token-allowance-streams"
                    threading.Thread(target=self._run, name=name, daemon=True).start()
                    self._running = True
                except RuntimeError:  # no thread can be had: the answer is worth more than a watch
                    logger.warning("token_allowance: nobody can watch a stream for switches")

    def leave(self, stream: Stream) -> None:
        """After this its connection is left alone: it may serve another call."""
        with self._lock:
            self._streams.discard(stream)

    def look(self) -> None:
        """Cut what a switch of now cuts. Never raises: who engages a switch has engaged it."""
        with self._lock:
            found = list(self._streams)
        try:
            if found:
                self._cut(found)
        except Exception:
            logger.exception("token_allowance: the switches for streams cannot be read")

    def _run(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(EVERY_SECONDS)
            self.look()
            with self._lock:
                now = time.monotonic()
                last = now if self._streams else last
                if now - last > LINGER_SECONDS:
                    self._running = False
                    return

    def _cut(self, found: Iterable[Stream]) -> None:
        decided = _decided()
        for stream in found:
            refusal = _refusal(stream.plan, decided)
            if refusal is not None:
                with self._lock:
                    if stream in self._streams:
                        self._streams.discard(stream)
                        stream.cut(refusal)


def watch() -> Watch:
    """The one of this process: a forked child has neither its parent's streams nor its thread."""
    global _watch
    if _watch.pid != os.getpid():
        _watch = Watch()
    return _watch


def refusal(plan: Plan) -> SwitchEngaged | None:
    """What a call under way is to be told if a switch of now cuts it."""
    return _refusal(plan, _decided())


def shut(connected: Any) -> None:
    """End both directions of a connection, whichever object stands for it and whoever waits on it.

    Not by ``SSLSocket.shutdown``: it would have what is still encrypted read as the answer.
    """
    if isinstance(connected, socket.socket):
        socket.socket.shutdown(connected, socket.SHUT_RDWR)
    elif connected is not None:
        with socket.socket(fileno=os.dup(connected.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)


def _refusal(plan: Plan, decided: Policy) -> SwitchEngaged | None:
    if plan.observe or not any(switch.cuts_streams for switch in decided.switches):
        return None
    now = timezone.now()
    rule = decided.cutting({**plan.attribution.as_dict(), "model": plan.model}, now)
    return None if rule is None else stopped(rule, now)


def _decided() -> Policy:
    """The switches of now; as last known if the database cannot be asked."""
    try:
        return policy.confirmed()
    except Exception:
        if (known := policy.known()) is None:
            raise
        return known


def _may_look() -> bool:
    """Does another thread see the switches? Not inside a TestCase, nor in a database in memory."""
    in_memory = (getattr(connections[alias], "is_in_memory_db", bool) for alias in connections)
    return not inside_testcase() and not any(known() for known in in_memory)


_watch = Watch()
