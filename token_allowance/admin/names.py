"""Keys with what they are called beside them: never a name instead of its key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django.contrib import admin
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from token_allowance import limits
from token_allowance.admin.base import NOTHING
from token_allowance.labels import Label, Labels

Shown = str | SafeString


def column(name: str, *, ordering: str | None = None) -> Callable[[Any], Shown]:
    """A column of one dimension: ``acme (Acme Inc.)``, the name linked to its page."""

    @admin.display(description=name, ordering=ordering)
    def shown(row: Any) -> Shown:
        value = getattr(row, name)
        label = label_of(row, name, value)
        if label is None:
            return value or NOTHING
        return format_html("{} ({})", value, linked(label))

    shown.__name__ = name
    return shown


def values(row: Any) -> Iterator[tuple[str, str]]:
    """The dimensions in which a row names one value."""
    for name in reversed(limits.DIMENSIONS):
        value = getattr(row, name, "")
        if value not in ("", limits.EACH):
            yield name, value


def described(text: str, row: Any) -> str:
    """The words for a row, with its names behind them. Without links: it is one itself."""
    names = [label.text for name, value in values(row) if (label := label_of(row, name, value))]
    return f"{text} ({', '.join(names)})" if names else text


def known_as(row: Any) -> Shown:
    """Each value of a row that has a name, one to a line: ``tenant acme: Acme Inc.``"""
    lines = [
        (name, value, linked(label))
        for name, value in values(row)
        if (label := label_of(row, name, value))
    ]
    return format_html_join("", "<div>{} {}: {}</div>", lines) or NOTHING


def linked(label: Label) -> Shown:
    return format_html('<a href="{}">{}</a>', label.url, label.text) if label.url else label.text


def label_of(row: Any, name: str, value: str) -> Label | None:
    if value in ("", limits.EACH):
        return None
    labels: Labels | None = getattr(row, "labels", None)
    if labels is None:
        labels = row.labels = Labels()
    return labels.of(name, value)
