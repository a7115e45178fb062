"""Limits: defined here in dollars and words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from token_allowance import attempts, conf, limits, money
from token_allowance.admin import increases, lengths, names, percentages, revisions, staff
from token_allowance.admin.base import NOTHING, AllowanceAdmin, figure
from token_allowance.admin.limit_form import LimitForm
from token_allowance.exceptions import StoreUnavailable
from token_allowance.increases import Increase
from token_allowance.models import Limit, LimitIncrease, Tenant
from token_allowance.stores.base import Room
from token_allowance.windows import Window

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class LooksAtFilter(admin.SimpleListFilter):
    title = "applies to"
    parameter_name = "looks_at"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        named = [(name, f"{name}s") for name in limits.DIMENSIONS]
        return [*named, ("everyone", "everyone together")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() == "everyone":
            return queryset.filter(**dict.fromkeys(limits.DIMENSIONS, ""))
        if self.value() in limits.DIMENSIONS:
            return queryset.exclude(**{str(self.value()): ""})
        return queryset


@admin.register(Limit)
class LimitAdmin(AllowanceAdmin):
    form = LimitForm
    save_as = True
    list_display = ["applies_to", "amount_shown", "window_shown", "used_now", "mode_shown",
                    "is_active", "zone_shown", "expires_at"]  # fmt: skip
    list_filter = [LooksAtFilter, "window", "unit", "mode", "is_active"]
    search_fields = ["tenant", "user", "session", "feature", "model", "plan"]
    search_help_text = "Part of a tenant, user, session, feature, model or plan."
    fieldsets = [
        ("Whose budget", {"fields": [*limits.DIMENSIONS, "plan"]}),
        ("How much", {"fields": [("amount", "unit"), "granted"]}),
        ("How long", {"fields": [("window", "rolling_seconds"), ("anchor_day", "time_zone")]}),
        ("At which part of it", {"fields": [("notify_at", "degrade_at", "hard_stop_percent")]}),
        ("In force", {"fields": ["mode", "is_active", "expires_at"]}),
        ("Why", {"fields": ["reason", "history"]}),
    ]
    inlines = [increases.IncreaseInline]
    in_words = ["applies_to", "known_as", "amount_shown", "granted", "window_shown", "zone_shown",
                "levels_shown", "mode_shown", "is_active", "expires_at",
                "history"]  # fmt: skip

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is not None and not self.has_change_permission(request, obj):
            told = staff.may_touch(request, obj)  # reasons may name others
            shown = [n for n in self.in_words if told or n not in ("granted", "history")]
            return [(None, {"fields": shown})]
        if obj is None or not any(names.values(obj)) or conf.current().LABELS is None:
            return self.fieldsets
        (title, scope), *others = self.fieldsets
        return [(title, {"fields": [*scope["fields"], "known_as"]}), *others]

    def get_form(self, request: HttpRequest, obj: Any = None, *args: Any, **options: Any) -> Any:
        """Who may look at tenants is offered their keys where one is to be named."""
        form: Any = super().get_form(request, obj, *args, **options)
        form.only_tenants = staff.tenants(request)
        may_look = request.user.has_perm("token_allowance.view_tenant")
        form.offers_tenants = may_look and form.only_tenants is None
        return form

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Who looks after some tenants sees the limits that these have, and changes their own."""
        rows, own = super().get_queryset(request), staff.tenants(request)
        return rows if own is None else rows.filter(tenant__in=[*own, limits.EACH])

    def changeform_view(
        self, request: HttpRequest, object_id: Any = None, *args: Any, **options: Any
    ) -> Any:
        own = partial(super().changeform_view, request, object_id, *args, **options)
        return attempts.answered(request, revisions.SOURCE, object_id, own)

    def delete_view(self, request: HttpRequest, object_id: Any, *args: Any, **options: Any) -> Any:
        own = partial(super().delete_view, request, object_id, *args, **options)
        return attempts.answered(request, revisions.SOURCE, object_id, own)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_change_permission(request, obj) and staff.may_touch(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_delete_permission(request, obj) and staff.may_touch(request, obj)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is not None and not self.has_change_permission(request, obj):
            return self.in_words
        return ["granted", "known_as", "history"]

    def get_inlines(self, request: HttpRequest, obj: Any) -> Any:
        return self.inlines if obj else []

    def save_formset(self, request: HttpRequest, form: Any, formset: Any, change: bool) -> None:
        for increase in formset.save(commit=False):
            increase.by = request.user.get_username()
            increase.save()
        formset.save_m2m()

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        changes = super().get_changelist_instance(request)
        add_figures(changes.result_list)
        return changes

    def save_model(self, request: HttpRequest, obj: Limit, form: Any, change: bool) -> None:
        before = revisions.before(obj) if change else {}
        super().save_model(request, obj, form, change)
        revisions.note(request, obj, before, form.cleaned_data.get("reason", ""))
        if change and "amount" in form.changed_data:
            text = f"The amount is {obj.amount_text} now. What was spent in this window is kept."
            self.message_user(request, text, messages.INFO)

    def delete_model(self, request: HttpRequest, obj: Limit) -> None:
        revisions.note_removals(request, [obj])
        super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        revisions.note_removals(request, queryset)
        super().delete_queryset(request, queryset)

    @admin.display(description="history")
    def history(self, limit: Limit) -> str | SafeString:
        return revisions.in_words(limit) if limit.pk else NOTHING

    @admin.display(description="applies to")
    def applies_to(self, limit: Limit) -> str:
        return names.described(limit.scope_text, limit)

    @admin.display(description="known as")
    def known_as(self, limit: Limit) -> str | SafeString:
        return names.known_as(limit)

    @admin.display(description="amount", ordering="amount")
    def amount_shown(self, limit: Limit) -> str | SafeString:
        return figure(limit.amount_text)

    @admin.display(description="more for a while")
    def granted(self, limit: Limit) -> str | SafeString:
        return increases.in_words(limit) if limit.pk else NOTHING

    @admin.display(description="window", ordering="window")
    def window_shown(self, limit: Limit) -> str:
        if limit.window == Window.WEEK:
            return f"a week from {WEEKDAYS[limit.anchor_day - 1]}"
        if limit.window == Window.MONTH and limit.anchor_day > 1:
            return f"a month from day {limit.anchor_day}"
        if limit.window == Window.ROLLING:
            return f"the last {lengths.written(limit.rolling_seconds)}"
        return limit.get_window_display()

    @admin.display(description="time zone", ordering="time_zone")
    def zone_shown(self, limit: Limit) -> str:
        if limit.window in (Window.TOTAL, Window.ROLLING):
            return NOTHING
        if limit.time_zone:
            return limit.time_zone
        default = conf.current().zone_name
        return f"tenant's or {default}" if limit.tenant else default

    @admin.display(description="at which part of it")
    def levels_shown(self, limit: Limit) -> str:
        """Of the amount: where people are told, calls become cheaper, and calls end."""
        told = percentages.written(limit.notify_at)
        words = [f"tells at {told} %" if told else "tells nobody"]
        if limit.degrade_at is not None:
            words.append(f"degrades at {limit.degrade_at} %")
        return "; ".join([*words, f"stops at {limit.hard_stop_percent} %"])

    @admin.display(description="when spent", ordering="mode")
    def mode_shown(self, limit: Limit) -> str:
        return "is noted" if "observe" in (limit.mode, conf.current().MODE) else "refuses"

    @admin.display(description="used now")
    def used_now(self, limit: Limit) -> str | SafeString:
        """Only where the limit is one budget; one for each value has no single figure."""
        room: Room | None = getattr(limit, "room", None)
        if room is None:
            return NOTHING
        percent = 100 * room.used // room.budget.limit.amount if room.budget.limit.amount else 100
        used = money.format_usd(room.used) if limit.unit == limits.Unit.COST else f"{room.used:,}"
        text = "under 1%" if room.used and not percent else f"{percent}%"
        return format_html(
            '<span class="figure">{}, {}</span> '
            '<meter min="0" max="100" high="89" low="69" optimum="0" value="{}" '
            'aria-label="{} used"></meter>',
            used, text, min(percent, 100), text,
        )  # fmt: skip


def add_figures(rows: Iterable[Limit]) -> None:
    """Put ``room`` on each limit that is one budget, all with one question to the store."""
    single = [row for row in rows if is_one_budget(row)]
    if not single:
        return
    named = [row.tenant for row in single if row.tenant and not row.time_zone]
    zones = dict(Tenant.objects.filter(key__in=named).values_list("key", "time_zone"))
    now = timezone.now()
    more = defaultdict[int, list[Increase]](list)
    for i in LimitIncrease.objects.filter(limit__in=single, until__gt=now):
        more[i.limit_id].append(
            Increase(amount=i.amount, until=i.until, tenant=i.tenant, user=i.user)
        )
    budgets = [
        open_budget(row, zones.get(row.tenant, ""), now, tuple(more[row.pk])) for row in single
    ]
    try:
        rooms = conf.store().usage(budgets)
    except StoreUnavailable:
        return
    for row, room in zip(single, rooms, strict=True):
        row.room = room  # type: ignore[attr-defined]


def is_one_budget(row: Limit) -> bool:
    return row.is_active and all(getattr(row, d) != limits.EACH for d in limits.DIMENSIONS)


def open_budget(
    row: Limit, tenant_zone: str, now: Any, more: tuple[Increase, ...]
) -> limits.Budget:
    zone = row.time_zone or tenant_zone or conf.current().zone_name
    values = {name: getattr(row, name) for name in limits.DIMENSIONS}
    limit = limits.Limit(
        id=row.pk,
        **values,
        window=Window(row.window),
        rolling_seconds=row.rolling_seconds,
        anchor_day=row.anchor_day,
        time_zone=zone,
        unit=limits.Unit(row.unit),
        amount=row.amount,
        tracked_since=row.tracked_since,
        increases=more,
    )
    return limits.open_budget(limit, values, now)
