"""``drill``: try a kill switch on a target that may be stopped for a moment, and measure it."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import CommandError, OutputWrapper

from token_allowance import drills
from token_allowance.drills import probe
from token_allowance.management import targets
from token_allowance.models import Drill

HELP = "Try a kill switch: engage it, see calls refused in every process, release it."
NAMED = ("tenant", "feature", "percent", "processes", "seconds", "slo_seconds")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tenant", metavar="KEY", help="A tenant that may be stopped: your own.")
    parser.add_argument("--feature", metavar="KEY", help="Or a feature, for a part of its callers.")
    parser.add_argument(
        "--percent", type=int, metavar="N", help="Of the callers; 100 of a tenant, 1 of a feature."
    )
    parser.add_argument("--processes", type=int, metavar="N", help="That make the calls; 4.")
    parser.add_argument(
        "--seconds", type=float, metavar="N", help="That the switch stays engaged; 10."
    )
    parser.add_argument(
        "--slo",
        dest="slo_seconds",
        type=float,
        metavar="SECONDS",
        help="By then no call may be admitted any more; 5.",
    )
    parser.add_argument("--by", help="Who drills; the name of the system's user if left out.")
    parser.add_argument("--probe", action="store_true", help=argparse.SUPPRESS)


def run(out: OutputWrapper, options: dict[str, Any]) -> None:
    if options["probe"]:
        probe.run()
        return

    def say(text: str) -> None:
        out.write(text)
        out.flush()

    try:
        with interruptible():
            plan = drills.planned(
                **{name: options[name] for name in NAMED}, by=targets.person(options)
            )
            drill = drills.run(plan, say)
    except (drills.CannotDrill, ValueError) as error:
        raise CommandError(f"Cannot drill: {error}.") from error
    except KeyboardInterrupt as error:
        raise CommandError("Interrupted; its switch is released.", returncode=130) from error
    report(out, drill)


def report(out: OutputWrapper, drill: Drill) -> None:
    effect = "none" if drill.effect_ms is None else f"{drill.effect_ms:,} ms"
    last = f"the last {drill.last_admission_ms:,} ms" if drill.admitted_after else "none"
    codes = ", ".join(f"{code} {calls:,}" for code, calls in sorted(drill.codes.items()))
    out.write(f"First refusal after: {effect} (allowed: {drill.slo_ms:,} ms)")
    out.write(f"Admitted after the switch was engaged: {drill.admitted_after:,} calls, {last}")
    out.write(f"Refused: {drill.callers:,} calls in {drill.attempts:,} attempts: {codes or 'none'}")
    if not drill.passed:
        raise CommandError(f"Drill {drill.pk} failed: {drill.error}.")
    out.write(f"Drill {drill.pk} passed: {drill.calls:,} calls in {drill.processes} processes.")


@contextmanager
def interruptible() -> Iterator[None]:
    """Make SIGTERM an interrupt like SIGINT; another one does not interrupt the release."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)

    def interrupt(*_: Any) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
