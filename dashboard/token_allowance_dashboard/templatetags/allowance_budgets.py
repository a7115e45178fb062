"""What pages about budgets say: how they stand, when they are full again, which one is meant."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from urllib.parse import urlencode

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from token_allowance_dashboard.templatetags.allowance_dashboard import lasting

register = template.Library()
ICONS = {
    "ok": "✓",
    "warning": "▲",
    "degraded": "▼",
    "blocked": "■",
    "stopped": "■",
    "observing": "○",
    "unlimited": "∞",
}


@register.simple_tag
def state_icon(state: str) -> SafeString:
    """A sign beside a state word, so that colour is never all there is."""
    return format_html('<span aria-hidden="true">{}</span>', ICONS.get(state, ""))


@register.filter
def ahead(moment: dt.datetime | None, now: dt.datetime) -> str:
    """ "5 h 12 min": how long until then."""
    return lasting(None if moment is None else moment - now)


@register.simple_tag
def query_of(values: Iterable[tuple[str, str]]) -> str:
    """The part of an address that names the values of a budget."""
    pairs = list(values)
    return f"?{urlencode(pairs)}" if pairs else ""
