"""One drill: engage a switch, watch several processes refuse calls, release it, and judge."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from itertools import chain

from django.utils import timezone

from token_allowance import conf, policy
from token_allowance.drill_record import alias, reason
from token_allowance.drills.endpoint import Endpoint
from token_allowance.drills.figures import Figures, Moments, measured
from token_allowance.drills.plan import NAME, CannotDrill, Plan
from token_allowance.drills.probes import START_SECONDS, Probes, environment
from token_allowance.exceptions import StoreUnavailable
from token_allowance.models import Drill, Price
from token_allowance.switches import disengage, engage

logger = logging.getLogger("token_allowance")
HURRY_SECONDS = 1.0
#: Between the calls of one caller: while the switch is pulled, until it is released, and then. They
#: count in real budgets where the switch does not work, and nobody is to be taken for a runaway.
FAST_SECONDS, STEADY_SECONDS, SOON_SECONDS = 0.02, 1.0, 0.1
GRACE_SECONDS = 5.0  # after which a switch ends by itself that nobody has released
ERROR_LENGTH = 500
Say = Callable[[str], object]


def run(plan: Plan, say: Say = logger.info) -> Drill:
    """Drill it, which takes its ``seconds`` and some more; the record says how it went.

    The switch is released whatever happens, and ends by itself if this process is killed. Raises
    CannotDrill if there was nothing to measure.
    """
    check(plan)
    say(announced(plan))
    price()
    drill = Drill.objects.using(alias()).create(
        tenant=plan.tenant,
        feature=plan.feature,
        percent=plan.percent,
        processes=plan.processes,
        by=plan.by,
        started_at=timezone.now(),
        slo_ms=plan.slo_ms,
    )
    try:
        figures = exercise(plan, drill, say)
    except BaseException as error:
        told_to_end = isinstance(error, KeyboardInterrupt | SystemExit)
        close(drill, error="interrupted" if told_to_end else str(error) or type(error).__name__)
        raise
    record(drill, figures)
    return drill


def check(plan: Plan) -> None:
    """Raises CannotDrill where a drill would do harm, or could show nothing."""
    decided, now = policy.confirmed(), timezone.now()
    if conf.current().MODE == "observe" or decided.tenant(plan.tenant or NAME).observe:
        raise CannotDrill("calls are only observed (MODE), so that a switch refuses none of them")
    for caller in chain.from_iterable(plan.callers()):
        switch = decided.engaged({**caller.values, "model": NAME}, now)
        if switch is not None:
            raise CannotDrill(
                f"a switch is engaged that stops the target already: {switch.reason}. "
                "Drill another target, or release it first"
            )
    environment()


def announced(plan: Plan) -> str:
    return (
        f"Drill: {plan.words} will be stopped for {plan.seconds:g} seconds, by {plan.by}.\n"
        "Real calls of this target are refused meanwhile, with 503 switch_engaged.\n"
        f"{plan.processes} processes make metered calls of a model on loopback that costs nothing; "
        f"every one of them must refuse within {plan.slo_seconds:g} seconds.\n"
        "The switch is released at the end, and ends by itself "
        f"{GRACE_SECONDS:g} seconds later if that fails."
    )


def price() -> None:
    """A price of nothing for the model of drills, so that a cost limit can count its calls."""
    Price.objects.using(alias()).get_or_create(
        provider=NAME,
        model=NAME,
        source=NAME,
        effective_from=None,
        defaults={"input_mtok": Decimal(0), "output_mtok": Decimal(0)},
    )


def exercise(plan: Plan, drill: Drill, say: Say) -> Figures:
    with Endpoint() as endpoint:
        with Probes(plan, endpoint.url, f"{NAME}-{drill.pk}") as probes:
            probes.begin()
            served(probes)
            say(f"All processes are served, through {probes.client}. Pulling the switch.")
            probes.pace(FAST_SECONDS)
            with engaged(plan, drill, say) as moments:
                watch(plan, probes, moments[0], say)
                probes.pace(SOON_SECONDS)
            say("Released. Waiting for calls to be served again.")
            probes.await_served(moments[3], plan.slo_seconds)
        return measured(
            probes.calls, Moments(*moments), plan.processes, plan.slo_ms, endpoint.calls
        )


def watch(plan: Plan, probes: Probes, since: int, say: Say) -> None:
    """Let the probes call for as long as the switch is to stay engaged, soon at a slower pace."""
    until = time.monotonic() + plan.seconds
    everywhere = probes.await_refused(since, min(HURRY_SECONDS, plan.seconds))
    say("Every process refuses its calls." if everywhere else "Not every process refuses them yet.")
    probes.pace(STEADY_SECONDS)
    while (left := until - time.monotonic()) > 0:
        probes.check()
        time.sleep(min(left, 0.2))


def served(probes: Probes) -> None:
    """Wait for a call of each caller to be served before the switch is pulled."""
    done = probes.await_served(0, START_SECONDS)
    if refused := next((call for call in probes.calls if call.code), None):
        raise CannotDrill(
            f"calls of the target are refused before the switch is pulled: {refused.code}: "
            f"{refused.text}"
        )
    if not done:
        raise CannotDrill(f"calls of the target were not served within {START_SECONDS:.0f} seconds")


@contextmanager
def engaged(plan: Plan, drill: Drill, say: Say) -> Iterator[list[int]]:
    """The switch, engaged inside; the moments of its pull and release are added to the list."""
    why = reason(drill)
    moments = [time.time_ns()]
    try:
        try:
            engage(
                **plan.target,
                reason=why,
                by=plan.by,
                minutes=(plan.seconds + GRACE_SECONDS) / 60,
                percent=plan.percent,
                anew=True,
                source=NAME,
            )
        except ValueError as error:
            raise CannotDrill(f"{error}: {plan.words}") from error
        moments.append(time.time_ns())
        yield moments
    finally:
        moments.append(time.time_ns())
        release(plan, why, say if len(moments) > 2 else logger.debug)
        moments.append(time.time_ns())


def release(plan: Plan, why: str, say: Say) -> None:
    try:
        if not disengage(**plan.target, by=plan.by, reason=why, engaged_for=why, source=NAME):
            say("The switch was no longer this drill's: it ended, or somebody has engaged it anew.")
    except StoreUnavailable as error:
        say(f"The switch could not be released, and ends by itself in a moment: {error}")


def record(drill: Drill, figures: Figures) -> None:
    for name in ("effect_ms", "last_admission_ms", "calls", "admitted_after", "callers",
                 "attempts", "codes", "passed"):  # fmt: skip
        setattr(drill, name, getattr(figures, name))
    close(drill, error="; ".join(figures.failures))


def close(drill: Drill, error: str) -> None:
    drill.error = error[:ERROR_LENGTH]
    drill.finished_at = timezone.now()
    try:
        drill.save(using=alias())
    except Exception:
        logger.exception("token_allowance: drill %s cannot be recorded", drill.pk)
