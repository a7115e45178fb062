"""What the templates say again and again: money, shares, times, addresses."""

from __future__ import annotations

import datetime as dt
from typing import Any
from urllib.parse import urlencode

from django import template
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from token_allowance import money
from token_allowance_dashboard import page

register = template.Library()
NONE = "—"


@register.filter
def usd(micros: int | None) -> str:
    """Micro-dollars for people: the exact amount, never $0.00 for a little (case C90)."""
    return NONE if micros is None else money.format_usd(int(micros))


@register.filter
def usd_short(micros: int | None) -> str:
    """The same rounded to cents where that leaves something to see; the exact amount is beside."""
    if micros is None:
        return NONE
    if abs(micros) < 100_000:
        return money.format_usd(int(micros))
    cents = (abs(micros) + 5_000) // 10_000 * 10_000
    return money.format_usd(cents if micros > 0 else -cents)


@register.filter
def count(number: int | None) -> str:
    return NONE if number is None else f"{number:,}"


@register.filter
def percent_of(part: int, whole: int) -> str:
    """ "62 %"; below one percent of something it says so."""
    if not whole:
        return NONE
    if part and part * 100 < whole:
        return "< 1 %"
    return f"{part * 100 // whole} %"


@register.filter
def amount(value: int | None, unit: str) -> str:
    """An amount of a limit in its unit."""
    if value is None:
        return NONE
    return money.format_usd(value) if unit == "cost" else f"{value:,} {unit}"


@register.filter
def lasting(length: dt.timedelta | None) -> str:
    """ "3 h 12 min": the two largest parts."""
    if length is None:
        return NONE
    seconds = max(0, int(length.total_seconds()))
    parts = [("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)]
    found = []
    for word, each in parts:
        number, seconds = divmod(seconds, each)
        if number:
            found.append(f"{number} {word}")
    return " ".join(found[:2]) or "0 s"


@register.filter
def seconds(length: dt.timedelta | None) -> str:
    """ "0.94 s", "12.3 s": of a short length more than whole seconds."""
    if length is None or length.total_seconds() >= 60:
        return lasting(length)
    exact = max(0.0, length.total_seconds())
    return f"{exact:.2f} s" if exact < 10 else f"{exact:.1f} s"


@register.simple_tag
def page_url(name: str, *args: Any) -> str:
    """The address of one of our pages; empty if it is not mounted."""
    return page.address(name, *args) or ""


@register.simple_tag(takes_context=True)
def with_query(context: dict[str, Any], **changed: Any) -> str:
    """The address of this page with these parts of its query changed; None or "" drops one."""
    request: HttpRequest = context["request"]
    query = request.GET.copy()
    for name, value in changed.items():
        query.pop(name, None)
        if value not in (None, ""):
            query[name] = str(value)
    return f"{request.path}?{query.urlencode()}" if query else request.path


@register.simple_tag(takes_context=True)
def named(context: dict[str, Any], dimension: str, value: str) -> str | SafeString:
    """A key with its name beside it, as LABELS tells: never a name instead of its key."""
    if not value:
        return "none"
    label = context["labels"].of(dimension, value)
    return value if label is None else format_html("{} ({})", value, label.text)


@register.simple_tag(takes_context=True)
def narrowed(context: dict[str, Any], dimension: str, value: str) -> str:
    """This page for one value only, grouped by what comes next."""
    order = ("feature", "model", "user", "tenant", "provider")
    query = context["request"].GET.copy()
    query[dimension] = value or "none"
    named = set(query) | {dimension}
    query["group"] = next((name for name in order if name not in named), "user")
    return f"{context['request'].path}?{query.urlencode()}"


@register.simple_tag(takes_context=True)
def without(context: dict[str, Any], dimension: str) -> str:
    """This page without one of the values that it is narrowed to."""
    query = context["request"].GET.copy()
    query.pop(dimension, None)
    return f"{context['request'].path}?{query.urlencode()}"


@register.simple_tag(takes_context=True)
def control(context: dict[str, Any], permission: str) -> str:
    """Sets ``why_not``: why a control is disabled for this person; empty if it is not."""
    context["why_not"] = context["access"].why_not(permission)
    return ""


@register.filter
def field(row: Any, name: str) -> Any:
    return getattr(row, name)


@register.filter
def zoned(moment: dt.datetime, zone: dt.tzinfo) -> str:
    """A moment in the page's zone, to the second."""
    return f"{moment.astimezone(zone):%Y-%m-%d %H:%M:%S}"


@register.simple_tag
def share(part: int, whole: int) -> int:
    """A hundred parts of the whole, for the width of a bar."""
    return 100 * part // whole if whole else 0


@register.simple_tag
def as_query(values: dict[str, str]) -> str:
    """Names and values as a part of an address."""
    return urlencode(values)
