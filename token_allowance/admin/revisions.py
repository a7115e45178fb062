"""The history of a limit: written when it is saved here, and told in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from token_allowance.admin import amounts
from token_allowance.admin.base import NOTHING
from token_allowance.limits import EACH
from token_allowance.models import Limit, LimitRevision
from token_allowance.models.revisions import written

SOURCE = "admin"
SHOWN = 50


def before(limit: Limit) -> dict[str, Any]:
    """What the database says of a limit that is about to be saved."""
    return written(Limit.objects.get(pk=limit.pk))


def note(request: HttpRequest, limit: Limit, was: Mapping[str, Any], reason: str) -> None:
    LimitRevision.note(limit, was, by=_by(request), source=SOURCE, reason=reason)


def note_removals(request: HttpRequest, limits: Iterable[Limit]) -> None:
    with transaction.atomic():
        for limit in limits:
            LimitRevision.note_removal(limit, limit.pk, by=_by(request), source=SOURCE)


def changes(revision: LimitRevision, unit: str) -> Iterator[tuple[str, str, str]]:
    """Each field that changed: its name, what it was, what it became. ``unit`` is the limit's."""
    for name in sorted({*revision.before, *revision.after}):
        was, now = (_shown(side, name, unit) for side in (revision.before, revision.after))
        yield name.replace("_", " "), was, now


def in_words(limit: Limit) -> str | SafeString:
    """The latest first: when, by whom, from where, why, and what changed."""
    rows = LimitRevision.objects.filter(limit_id=limit.pk)[:SHOWN]
    lines = [
        (
            timezone.localtime(row.at).strftime("%Y-%m-%d %H:%M"),
            row.by or "an unnamed writer",
            row.source,
            f": {row.reason}" if row.reason else "",
            sentence(row, limit.unit),
        )
        for row in rows
    ]
    return format_html_join("", "<div>{} by {} ({}){}. {}</div>", lines) or NOTHING


def sentence(revision: LimitRevision, unit: str) -> str:
    """``amount $5.00 → $7.00; mode observe → enforce``"""
    if not revision.before and not revision.after:
        return "Tried, and refused."
    if not revision.before:
        return "Made."
    if not revision.after:
        return "Deleted."
    return "; ".join(f"{name} {was} → {now}" for name, was, now in changes(revision, unit))


def _shown(side: Mapping[str, Any], name: str, unit: str) -> str:
    value = side.get(name)
    if value is None or value in ("", []):
        return NOTHING
    if name == "amount" and isinstance(value, int):
        return amounts.text(value, side.get("unit", unit))
    if value == EACH:
        return "each"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _by(request: HttpRequest) -> str:
    return str(request.user.get_username())
