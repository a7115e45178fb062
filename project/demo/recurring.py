"""The recurring work in threads of the demo, as ``manage.py allowance jobs --loop`` does it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from token_allowance import schedule
from token_allowance.management.subcommands import jobs
from token_allowance.models import Channel
from token_allowance.signals import alert_sent

SECONDS = 5.0  # a visitor does not wait for a minute
NAMES = ("expire_reservations", "evaluate_alerts", "deliver")
CHANNEL = "this terminal"


@contextmanager
def running(say: Callable[[str], None]) -> Iterator[None]:
    """Evaluate alerts meanwhile, and print them as they would be mailed."""
    Channel.objects.get_or_create(name=CHANNEL, defaults={"kind": Channel.Kinds.SIGNAL})
    listed = [replace(schedule.job(name), every_seconds=SECONDS) for name in NAMES]
    end = threading.Event()

    def print_alert(channel: str, text: str, **_: Any) -> None:
        if channel == CHANNEL:
            say(f"\n{text}\n")

    def say_faults(text: str) -> None:
        if " failed with " in text:
            say(f"{text}\n")

    alert_sent.connect(print_alert)
    thread = threading.Thread(target=jobs.keep, args=(end, say_faults, listed))
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        alert_sent.disconnect(print_alert)
