"""What all our admin pages have in common."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from token_allowance import money
from token_allowance.admin.generics import ModelAdmin
from token_allowance.labels import Labels

NOTHING = "—"


class AllowanceAdmin(ModelAdmin):
    list_per_page = 50
    show_full_result_count = False
    show_facets = admin.ShowFacets.ALLOW
    list_select_related = ()
    empty_value_display = NOTHING

    class Media:
        css = {"all": ["token_allowance/admin.css"]}

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """The rows of one page share their names, so that each is asked for once."""
        changes = super().get_changelist_instance(request)
        labels = Labels()
        for row in changes.result_list:
            row.labels = labels
        return changes


class ReadOnlyAdmin(AllowanceAdmin):
    """Rows that something else writes: they can be looked at."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


def figure(text: str | None) -> str | SafeString:
    """A number for a column: aligned to the right, digits of equal width."""
    return NOTHING if text is None else format_html('<span class="figure">{}</span>', text)


def usd(micros: int | None) -> str | SafeString:
    return figure(None if micros is None else money.format_usd(micros))
