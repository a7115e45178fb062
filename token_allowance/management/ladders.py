"""Does the ladder do what limits and rules say? Findings for ``doctor``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from django.db.models import F, Q
from django.utils import timezone

from token_allowance import limits
from token_allowance.models import DegradeRule, Limit
from token_allowance.names import family
from token_allowance.prices import matching

SHOWN = 20

Finding = tuple[str, str]  # warning or problem; a sentence


def idle() -> Iterator[Finding]:
    """Is there a step for what limits make cheaper, before they refuse?"""
    rules = list(DegradeRule.objects.filter(is_active=True))
    unexpired = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
    acting = Limit.objects.filter(unexpired, is_active=True, degrade_at__isnull=False)
    enforced = acting.exclude(mode="observe")
    if not rules and (number := enforced.count()):
        count = f"{number:,} limits have" if number > 1 else "One limit has"
        yield (
            "warning",
            f"{count} a level from which calls become cheaper, and no degrade rule is in force: "
            "they are served in full until they are refused. Add a degrade rule, or empty "
            "degrade_at.",
        )
    without = (limit for limit in enforced.iterator() if not any(_acts(rules, limit)))
    for limit in islice(without, SHOWN) if rules else ():
        yield (
            "warning",
            f"{limit}: at {limit.degrade_at} % calls should become cheaper, and no degrade rule "
            "is for any of them.",
        )
    late = F("hard_stop_percent")
    for limit in acting.filter(degrade_at__gte=late, amount__gt=0)[:SHOWN]:
        yield "warning", f"{limit}: calls are refused before they become cheaper."


def _acts(rules: Iterable[DegradeRule], limit: Limit) -> Iterator[bool]:
    """For each rule: can it change a call that this limit covers?"""
    every = ("", limits.EACH)
    for rule in rules:
        model = limit.model if limit.model not in every else rule.from_model
        names_it = rule.from_model == limits.EACH or family(rule.from_model) == family(model)
        elsewhere = rule.feature and limit.feature not in (*every, rule.feature)
        is_it = bool(rule.to_model) and family(rule.to_model) == family(model)
        yield names_it and not elsewhere and not (is_it and rule.max_output_tokens is None)


def unpriced() -> Iterator[Finding]:
    """A model without a price serves no call whose cost is limited."""
    if not Limit.objects.filter(is_active=True, unit=limits.Unit.COST).exists():
        return
    for rule in DegradeRule.objects.filter(is_active=True).exclude(to_model=""):
        if not matching.priced(rule.to_model):
            yield (
                "problem",
                f"Degrade rule {rule}: {rule.to_model} has no price, so calls whose cost is "
                "limited are not degraded.",
            )


def dear() -> Iterator[Finding]:
    """A step up is none: does what a rule serves with cost as much as what was asked for?"""
    now = timezone.now()
    for rule in DegradeRule.objects.filter(is_active=True).exclude(to_model=""):
        if rule.from_model == limits.EACH:
            continue
        before = {m.provider: m.price for m in matching.matches(rule.from_model, at=now)}
        for match in matching.matches(rule.to_model, at=now):
            asked, served = before.get(match.provider), match.price
            if asked is None or served is None or asked.model == served.model:
                continue
            if served.input_mtok >= asked.input_mtok and served.output_mtok >= asked.output_mtok:
                yield (
                    "warning",
                    f"Degrade rule {rule}: at {match.provider} {rule.to_model} is no cheaper.",
                )
