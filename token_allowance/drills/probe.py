"""One process of a drill: ``manage.py allowance drill --probe``. It calls until it is told to end.

It reads lines of JSON from its standard input: first its task, then how many seconds to leave
between the calls of a caller, for the first time when it is to begin. It ends with its input, so
also when the driller was killed. What it says stands on lines of its own, behind a mark: a host
project may write to the same output.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from token_allowance import allowance, metrics
from token_allowance.drills.clients import Ask, client
from token_allowance.problems import find_refusal

MARK = "token-allowance-drill:"
SPARED_SECONDS = 1.0  # between the calls that are to be served: they count in real budgets
INPUT = 0
TEXT_LENGTH = 300


def run() -> None:
    lines = _lines(INPUT)
    task = json.loads(next(lines))
    with client(task["url"]) as (name, ask):
        say({"client": name})
        pace = Pace()
        threading.Thread(target=pace.follow, args=(lines,), daemon=True).start()
        pace.begun.wait()
        until_told(task, ask, pace)


def until_told(task: dict[str, Any], ask: Ask, pace: Pace) -> None:
    """Call for each caller in its turn."""
    callers: list[dict[str, Any]] = task["callers"]
    called = [-math.inf] * len(callers)
    number = 0
    while not pace.ended.is_set():
        waits = []
        for place, caller in enumerate(callers):
            gap = pace.seconds if caller["stopped"] else max(pace.seconds, SPARED_SECONDS)
            if time.monotonic() >= called[place] + gap:
                number += 1
                say(call(ask, caller, f"{task['trace']}-{number}"))
                called[place] = time.monotonic()
            waits.append(called[place] + gap - time.monotonic())
        pace.wait(max(0.0, min(waits)))


def call(ask: Ask, caller: dict[str, Any], trace_id: str) -> dict[str, Any]:
    """One call and what came of it: its code, "" if it was served, and how often it was tried."""
    values = {name: value for name, value in caller.items() if name != "stopped"}
    refused = metrics.value(metrics.CALLS_REFUSED)
    began, code, text = time.time_ns(), "", ""
    try:
        with allowance.charge_to(**values, trace_id=trace_id):
            ask()
    except Exception as error:
        refusal = find_refusal(error)
        code = type(error).__name__ if refusal is None else refusal.code
        text = str(refusal or error)[:TEXT_LENGTH]
    return {
        "user": caller["user"],
        "stopped": caller["stopped"],
        "began": began,
        "ended": time.time_ns(),
        "code": code,
        "text": text,
        "attempts": max(1, metrics.value(metrics.CALLS_REFUSED) - refused),
    }


class Pace:
    """How fast to call, as the driller says meanwhile."""

    def __init__(self) -> None:
        self.seconds = 1.0
        self.begun, self.ended = threading.Event(), threading.Event()
        self._told = threading.Event()

    def follow(self, lines: Iterator[str]) -> None:
        try:
            for line in lines:
                self.seconds = float(json.loads(line))
                self.begun.set()
                self._told.set()
        finally:
            self.ended.set()
            self.begun.set()
            self._told.set()

    def wait(self, seconds: float) -> None:
        if self._told.wait(seconds):
            self._told.clear()


def say(document: dict[str, Any]) -> None:
    sys.stdout.write(f"\n{MARK}{json.dumps(document)}\n")
    sys.stdout.flush()


def _lines(descriptor: int) -> Iterator[str]:
    """Lines as they come. Read without Python's buffer, which a thread may not hold at the end."""
    rest = b""
    while data := os.read(descriptor, 65536):
        *whole, rest = (rest + data).split(b"\n")
        yield from (line.decode() for line in whole)
