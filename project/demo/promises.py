"""What the demo promises, each judged by figures alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from project.demo.agent import MAX_CALLS
from project.demo.race import WARM_UP_CALLS
from project.demo.simulation import FLAT_MODEL, FLAT_SMALL_MODEL
from project.demo.story import Figures
from token_allowance.money import format_usd

FINAL = {"settled", "released", "expired"}
NEARLY_PERCENT = 90
CLIMBED_PERCENT = 99
SECONDS_OFF = 3  # between the server's clock at the refusal and ours just before it


@dataclass(frozen=True, slots=True)
class Verdict:
    promise: str
    kept: bool
    seen: str


def judge(figures: Figures) -> list[Verdict]:
    """A verdict on every promise, in the order of the story."""
    return [check(figures) for check in CHECKS]


def page_is_served(figures: Figures) -> Verdict:
    page = figures.page
    kept = page is not None and page.status == 200 and "not real money" in page.text
    return Verdict("The page opens and says that its provider is simulated", kept, _status(page))


def budget_stops_calls(figures: Figures) -> Verdict:
    statuses = [answer.status for answer in figures.chat]
    served = statuses.count(200)
    kept = served > 0 and statuses == [200] * served + [429, 429]
    return Verdict(
        "A used-up budget stops calls before the provider hears of them",
        kept and figures.chat_reached == served,
        f"{len(statuses)} asked, {served} answered, {figures.chat_reached} reached the provider",
    )


def refusal_is_a_problem_document(figures: Figures) -> Verdict:
    refused = next((answer for answer in figures.chat if answer.status != 200), None)
    promise = "The refusal is a 429 problem document, to be tried again at midnight"
    if refused is None or figures.refused_at is None or figures.day_ends_at is None:
        return Verdict(promise, False, "nothing was refused")
    left = (figures.day_ends_at - figures.refused_at).total_seconds()
    seconds = refused.headers.get("retry-after", "")
    kept = (
        refused.status == 429
        and refused.headers.get("content-type") == "application/problem+json"
        and refused.headers.get("x-should-retry") == "false"
        and seconds.isdecimal()
        and abs(int(seconds) - left) <= SECONDS_OFF
        and _says(refused.document, "user daily budget exceeded")
    )
    return Verdict(promise, kept, f"{refused.status}, Retry-After {seconds or 'missing'} seconds")


def stream_arrives(figures: Figures) -> Verdict:
    page = figures.streamed
    kept = page is not None and page.status == 200 and page.text.rstrip().endswith("</html>")
    return Verdict("A streamed answer arrives in the page", kept, _status(page))


def agent_is_cut_off(figures: Figures) -> Verdict:
    calls, stopped = figures.agent.get("calls"), figures.agent.get("stopped") or {}
    code = stopped.get("code", "not stopped")
    kept = calls == figures.agent_reached == MAX_CALLS and code == "per_request_calls_exceeded"
    return Verdict(
        f"The agent is cut off after exactly {MAX_CALLS} calls",
        kept,
        f"{figures.agent_reached} reached the provider, {code}",
    )


def agent_climbs_its_ladder(figures: Figures) -> Verdict:
    steps, stopped = figures.climb.get("steps", []), figures.climb.get("stopped") or {}
    answered = [step["model"] for step in steps]
    full = answered.count(FLAT_MODEL)
    levels = [int(step["percent"].removesuffix(" %")) for step in steps]
    code = stopped.get("code", "not stopped")
    kept = (
        0 < full < len(steps)
        and answered == [FLAT_MODEL] * full + [FLAT_SMALL_MODEL] * (len(steps) - full)
        and answered == figures.climb_reached
        and levels[full - 2] < NEARLY_PERCENT <= levels[full - 1]
        and levels[-1] >= CLIMBED_PERCENT
        and code == "user_daily_budget_exceeded"
    )
    return Verdict(
        f"An agent gets the cheaper model from {NEARLY_PERCENT} % of its budget on, and then none",
        kept,
        f"{full} full calls, {len(steps) - full} cheap ones to {levels[-1] if levels else 0} %, "
        f"{code}",
    )


def somebody_is_told(figures: Figures) -> Verdict:
    of_the_climb = [text for text in figures.told if "user climber-" in text.partition("\n")[0]]
    named = [text for text in of_the_climb if "Top spenders" in text and FLAT_SMALL_MODEL in text]
    return Verdict(
        f"Somebody is told of a budget that is {NEARLY_PERCENT} % used, and who used it",
        len(named) == len(of_the_climb) == 1 and named[0].startswith(f"[{NEARLY_PERCENT} %]"),
        f"{len(figures.told)} messages, one for each budget",
    )


def a_stop_is_in_force(figures: Figures) -> Verdict:
    made = figures.stopped
    answer, after = made.answer, made.after_resume
    document = answer.document if answer is not None else None
    code = document.get("code") if isinstance(document, dict) else None
    kept = (
        answer is not None
        and answer.status == 503
        and code == "switch_engaged"
        and made.reached == 0
        and after is not None
        and after.status == 200
    )
    return Verdict(
        "A stop from the command line refuses the next call of every process",
        kept,
        f"{_status(answer)}, refused {made.effect_ms} ms after the command was back, "
        f"{made.reached} reached the provider",
    )


def one_racer_wins(figures: Figures) -> Verdict:
    statuses = sorted(outcome["status"] for outcome in figures.race)
    refused = [outcome["body"] for outcome in figures.race if outcome["status"] == 429]
    kept = (
        statuses == [200, 429]
        and figures.race_reached == WARM_UP_CALLS + 1
        and _says(refused[0], "user daily budget exceeded")
    )
    return Verdict(
        "Of two calls at once, with room for one, exactly one is refused",
        kept,
        f"{statuses}, {figures.race_reached - WARM_UP_CALLS} of 2 reached the provider",
    )


def budgets_hold(figures: Figures) -> Verdict:
    most = max(figures.peaks.values(), default=0)
    return Verdict(
        f"Used and reserved of a user were never above {format_usd(figures.user_budget)}",
        0 < most <= figures.user_budget,
        f"at most {format_usd(most)}, {figures.samples:,} looks",
    )


def counters_equal_the_ledger(figures: Figures) -> Verdict:
    drifted = len(figures.drifts)
    return Verdict(
        "Each counter equals the sum of its ledger rows, and nothing stays reserved",
        not drifted and figures.reserved_left == 0,
        f"{drifted} drifted, {figures.reserved_left} still reserved",
    )


def attempts_are_final(figures: Figures) -> Verdict:
    final = sum(state in FINAL for state in figures.states)
    ids = set(figures.request_ids) - {""}
    kept = final == len(figures.states) == len(ids) == figures.reached > 0
    return Verdict(
        "Each call that reached the provider has one row, in a final state",
        kept,
        f"{figures.reached} calls, {len(figures.states)} rows, {final} final",
    )


CHECKS: tuple[Callable[[Figures], Verdict], ...] = (
    page_is_served,
    budget_stops_calls,
    refusal_is_a_problem_document,
    stream_arrives,
    agent_is_cut_off,
    agent_climbs_its_ladder,
    somebody_is_told,
    a_stop_is_in_force,
    one_racer_wins,
    budgets_hold,
    counters_equal_the_ledger,
    attempts_are_final,
)


def _says(document: Any, detail: str) -> bool:
    return isinstance(document, dict) and str(document.get("detail", "")).startswith(detail)


def _status(answer: Any) -> str:
    return "no answer" if answer is None else f"HTTP {answer.status}, {len(answer.text):,} letters"
