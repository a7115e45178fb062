"""The plan of a call one step down the ladder."""

from __future__ import annotations

import datetime as dt
import logging
from dataclasses import replace
from functools import lru_cache

from token_allowance import conf
from token_allowance.estimate.maxima import max_output_tokens
from token_allowance.exceptions import SwitchEngaged, Unattributed, UnknownModel
from token_allowance.ladder import Step
from token_allowance.limits import EACH
from token_allowance.plans import Attempt, Plan, cost_matters, plan
from token_allowance.policy import Policy
from token_allowance.providers.rewriting import Change
from token_allowance.runs import Run

logger = logging.getLogger("token_allowance")


def served(full: Plan, runs: tuple[Run, ...], policy: Policy, now: dt.datetime) -> Plan:
    """How a call is served once a budget has reached its level, flagged ``degraded``.

    Flagged ``not_degraded`` it is ``full``: no step is for it, its request cannot be changed so, or
    what it leads to is stopped or unpriced. Without a flag it asks for no more than that already.
    """
    lower = _degraded(full, runs, policy, now)
    return replace(full, flags=(*full.flags, "not_degraded")) if lower is None else lower


def _degraded(full: Plan, runs: tuple[Run, ...], policy: Policy, now: dt.datetime) -> Plan | None:
    """One step down; ``full`` itself if that changes nothing, None if it cannot be.

    The cheaper model is one of the same provider: where a step is for every model, a price of that
    provider's says so. Without a price it does not serve a call whose cost is limited.
    """
    step = policy.ladder.step(full.model, full.attribution.feature)
    attempt = None if step is None else _lowered(full, step, policy)
    if step is None or attempt is None:
        return None
    if attempt == full.attempt:
        return full
    try:
        lower = plan(attempt, full.attribution, runs, policy, now)
    except (SwitchEngaged, Unattributed):
        return None
    except UnknownModel:
        _without_price(attempt)
        return None
    needs_price = step.from_model == EACH or cost_matters(lower.budgets, runs)
    if needs_price and attempt.asked_model and "unpriced" in lower.flags:
        _without_price(attempt)
        return None
    return replace(lower, flags=(*lower.flags, "degraded"))


def _lowered(full: Plan, step: Step, policy: Policy) -> Attempt | None:
    """The attempt as the step has it; None if the request cannot be changed so."""
    attempt, most = full.attempt, full.attempt.max_output_tokens
    stays = not step.to_model or policy.model(step.to_model) == full.model
    model = attempt.model if stays else step.to_model
    longest = max_output_tokens(model, conf.current().model_max_output_tokens)
    if step.max_output_tokens is not None:
        most = step.max_output_tokens if most is None else min(most, step.max_output_tokens)
    if not stays and most is not None and longest is not None:
        most = min(most, longest)  # some providers refuse a maximum above the model's own
    change = Change.NOTHING if stays else Change.MODEL
    if most != attempt.max_output_tokens:
        change |= Change.LENGTH
    if change not in attempt.changeable:
        return None
    asked = "" if stays else attempt.model
    return replace(attempt, model=model, max_output_tokens=most, asked_model=asked)


def _without_price(attempt: Attempt) -> None:
    _warn(attempt.provider or "an unknown provider", attempt.model)


@lru_cache(maxsize=256)  # said once
def _warn(provider: str, model: str) -> None:
    text = "token_allowance: %s has no price at %s, so no call is served with it instead"
    logger.warning(text, model, provider)
