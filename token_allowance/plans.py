"""What a call would be held to: its price, what it may need, and the budgets it is counted in."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from math import ceil

from token_allowance import calibration, conf, keys
from token_allowance.contexts import NO_CONTEXT, Context
from token_allowance.estimate.maxima import max_output_tokens
from token_allowance.estimate.references import Reference
from token_allowance.exceptions import SwitchEngaged, Unattributed, UnknownModel
from token_allowance.limits import Amounts, Attribution, Budget, Unit, checked_identifier
from token_allowance.money import MAX_MICROS
from token_allowance.policy import Policy, PriceRows
from token_allowance.pricing import Cost, ModelPrice, cost
from token_allowance.providers.rewriting import Change
from token_allowance.runs import Run
from token_allowance.runs import budgets as caps
from token_allowance.stops import SwitchRule
from token_allowance.usage import Usage

NO_USAGE = Usage()
DEFAULT_TIERS = frozenset({"", "default", "standard", "auto", "standard_only"})
UNKNOWN_VERSION = -1  # of a policy that could not be read
PROVIDER_LENGTH = 64
PEOPLE = ("tenant", "user", "session")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One call about to be made, as the caller asks for it. Tokens are estimates."""

    provider: str
    model: str
    input_tokens: int
    max_output_tokens: int | None = None  # per answer; None: not capped by the request
    choices: int = 1
    service_tier: str = ""
    idempotency_key: str = ""
    references: tuple[Reference, ...] = ()
    context: Context = NO_CONTEXT  # what the references stand for
    counted: bool = False  # ``input_tokens`` is a count of ours, which can be calibrated
    expected: Usage = NO_USAGE  # searches, pictures, sound; see ModelRequest
    changeable: Change = Change.NOTHING  # what of it the ladder may change
    asked_model: str = ""  # by the caller, where the ladder serves it with another

    @property
    def estimate(self) -> Usage:
        """The most the call is expected to use."""
        settings = conf.current()
        factor = settings.safety
        if self.counted:
            factor *= calibration.factor(self.provider, self.model)
        each = settings.output_tokens if self.max_output_tokens is None else self.max_output_tokens
        longest = max_output_tokens(self.model, settings.model_max_output_tokens)
        if longest is not None:
            each = min(each, longest)
        input_tokens = ceil(self.input_tokens * factor) + self.context.tokens
        tokens = Usage(
            input_tokens=min(MAX_MICROS, input_tokens),
            output_tokens=min(MAX_MICROS, each * max(1, self.choices)),
        )
        return tokens + self.expected if self.expected is not NO_USAGE else tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An attempt seen through one version of the policy."""

    attempt: Attempt
    attribution: Attribution
    version: int
    model: str  # its name in limits, switches and the ledger
    prices: PriceRows | None
    price: ModelPrice | None
    estimate: Usage
    amounts: Amounts
    exact: Decimal | None  # micro-dollars, before rounding up
    budgets: tuple[Budget, ...]
    observe: bool
    flags: tuple[str, ...]


def plan(
    attempt: Attempt,
    attribution: Attribution,
    runs: tuple[Run, ...],
    policy: Policy,
    now: dt.datetime,
    *,
    unmetered: bool = False,
) -> Plan:
    """Raises SwitchEngaged, Unattributed or UnknownModel, unless everything is only observed.

    ``unmetered``: the call was admitted without its store, and is planned after the fact.
    """
    _check_name(attempt)
    settings = conf.current()
    tenant = policy.tenant(attribution.tenant)
    observe = unmetered or settings.MODE == "observe" or tenant.observe
    prices, model = policy.prices(attempt.provider, attempt.model), policy.model(attempt.model)
    flags = ["unmetered_admission"] if unmetered else []
    if check_switches(attribution, model, policy, now, observe=observe):
        flags.append("would_refuse")
    opened = policy.opened(attribution, model, now)
    if check_attribution(attribution, opened.missing, observe=observe):
        flags.append("unattributed")
    if attempt.context.unknown:
        flags.append("context_unknown")
    estimate = attempt.estimate
    price = find_price(attempt, prices, estimate, attempt.service_tier, now)
    if price is None or price.source == "fallback":
        flags.append("unpriced")
    if price is None and not observe and cost_matters(opened.budgets, runs):
        raise _unknown(attempt)
    priced = cost(estimate, price) if price else None
    return Plan(
        attempt=attempt,
        attribution=attribution,
        version=policy.version,
        model=model,
        prices=prices,
        price=price,
        estimate=estimate,
        amounts=amounts(estimate, priced),
        exact=priced.exact if priced else None,
        budgets=(*caps(runs), *opened.budgets),
        observe=observe,
        flags=tuple(flags),
    )


def blind(attempt: Attempt, attribution: Attribution) -> Plan:
    """The plan of a call that is admitted without its policy. Raises UnknownModel."""
    _check_name(attempt)
    return Plan(
        attempt=attempt,
        attribution=attribution,
        version=UNKNOWN_VERSION,
        model=attempt.model,
        prices=None,
        price=None,
        estimate=attempt.estimate,
        amounts=amounts(attempt.estimate, None),
        exact=None,
        budgets=(),
        observe=True,
        flags=("unmetered_admission", "unpriced"),
    )


def amounts(usage: Usage, priced: Cost | None) -> Amounts:
    micros = None if priced is None else min(MAX_MICROS, priced.micros)
    return Amounts(cost_micros=micros, tokens=min(MAX_MICROS, usage.total_tokens))


def find_price(
    attempt: Attempt, prices: PriceRows | None, usage: Usage, service_tier: str, at: dt.datetime
) -> ModelPrice | None:
    """The price of the call as a whole; the fallback if the settings allow one (case C20)."""
    tier = "" if service_tier in DEFAULT_TIERS else service_tier
    found = prices.at(at, usage.input_tokens, tier) if prices else None
    settings = conf.current()
    if found is not None or settings.UNKNOWN_MODEL != "fallback" or not settings.FALLBACK_PRICE:
        return found
    rates = conf.fallback_rates(settings.FALLBACK_PRICE)
    return ModelPrice(provider=attempt.provider, model=attempt.model, source="fallback", **rates)


def _check_name(attempt: Attempt) -> None:
    """A model name that no table could hold is nobody's model: it is not sent in any mode."""
    try:
        checked_identifier("model", attempt.model)
        if len(checked_identifier("provider", attempt.provider or "?")) > PROVIDER_LENGTH:
            raise ValueError(f"provider is longer than {PROVIDER_LENGTH} characters")
    except ValueError as error:
        raise UnknownModel(f"not a model name: {error}", provider=attempt.provider) from None


def check_switches(
    attribution: Attribution, model: str, policy: Policy, now: dt.datetime, *, observe: bool
) -> bool:
    """Raise SwitchEngaged if such calls are stopped; when only observing, say so instead."""
    switch = policy.engaged({**attribution.as_dict(), "model": model}, now)
    inactive = not policy.tenant(attribution.tenant).is_active
    if switch is None and not inactive:
        return False
    if observe:
        return True
    if switch is None:
        raise SwitchEngaged("Model calls of this tenant are stopped: it is not active.")
    raise stopped(switch, now)


def stopped(switch: SwitchRule, now: dt.datetime) -> SwitchEngaged:
    """What the callers are told whom this switch stops."""
    scope = " ".join(name for name, _ in switch.named) or "global"
    wait = None if switch.ends_at is None else max(1, ceil((switch.ends_at - now).total_seconds()))
    return SwitchEngaged(
        f"Model calls are stopped by a {scope} switch: {switch.reason}",
        key=keys.scope(switch.named),
        scope=scope,
        reason=switch.reason,
        ends_at=switch.ends_at,
        retry_after_seconds=wait,
    )


def check_attribution(attribution: Attribution, missing: frozenset[str], *, observe: bool) -> bool:
    """Raise Unattributed if a limit looks at what the call does not name; if observing, say so."""
    choice = conf.current().UNATTRIBUTED
    lacking = [name for name in PEOPLE if name in missing]
    if choice == "refuse" and not any(getattr(attribution, name) for name in PEOPLE):
        lacking = lacking or ["tenant"]
    if not lacking or choice == "charge":
        return False
    if observe:
        return True
    raise Unattributed(
        f"no budget scope: a limit looks at the {' and '.join(lacking)} of a call, and this call "
        "names none. Wrap it in allowance.charge_to(...), set TOKEN_ALLOWANCE['ATTRIBUTION'], or "
        "set UNATTRIBUTED to 'charge'."
    )


def cost_matters(budgets: tuple[Budget, ...], runs: tuple[Run, ...]) -> bool:
    limited = any(b.limit.unit is Unit.COST and b.enforced and not b.limit.observe for b in budgets)
    return limited or any(run.max_cost_micros is not None for run in runs)


def _unknown(attempt: Attempt) -> UnknownModel:
    return UnknownModel(
        f"no price for model {attempt.model!r} of provider {attempt.provider!r}, and a cost limit "
        "applies. Add a price, a model alias, or a fallback price.",
        provider=attempt.provider,
        model=attempt.model,
    )
