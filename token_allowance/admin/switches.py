"""Switches: looked at and released here; they are engaged elsewhere, with a reason."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.safestring import SafeString

from token_allowance.admin import boards, names
from token_allowance.admin.base import ReadOnlyAdmin
from token_allowance.admin.generics import SwitchEvents
from token_allowance.models import Switch, SwitchEvent
from token_allowance.stops import ALL_PERCENT
from token_allowance.switches import NAMES, disengage

FLIP = "token_allowance.flip_switch"
FLIP_GLOBAL = "token_allowance.flip_global_switch"


class EngagedFilter(admin.SimpleListFilter):
    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("engaged", "engaged"), ("over", "released or ended")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        over = Q(released_at__isnull=False) | Q(ends_at__lte=timezone.now())
        if self.value() == "engaged":
            return queryset.exclude(over)
        return queryset.filter(over) if self.value() == "over" else queryset


class SwitchEventInline(SwitchEvents):
    model = SwitchEvent
    fields = ["at", "action", "by", "source", "reason", "ends_at", "percent", "cuts_streams"]
    extra = 0
    can_delete = False
    verbose_name_plural = "history"

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return request.user.has_perm("token_allowance.view_switch")


@admin.register(Switch)
class SwitchAdmin(ReadOnlyAdmin):
    list_display = ["stops", "state", "engaged_at", "by", "ends_at", "reason"]
    list_filter = [EngagedFilter]
    search_fields = ["tenant", "user", "feature", "model", "reason"]
    search_help_text = "Part of a tenant, user, feature, model or reason."
    fields = ("stops", "known_as", "state", "part", "cuts_streams", "reason", "by", "engaged_at",
              "ends_at", "released_at")  # fmt: skip
    readonly_fields = fields
    inlines = [SwitchEventInline]
    actions = ["release"]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        links = {"board": boards.address("switches")}
        if request.user.has_perm(FLIP):
            links["board_stop"] = boards.address("switch_stop")
        return super().changelist_view(request, {**links, **(extra_context or {})})

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        links = {"board": boards.address("switch", object_id)}
        return super().change_view(request, object_id, form_url, {**links, **(extra_context or {})})

    def has_flip_permission(self, request: HttpRequest) -> bool:
        return any(map(request.user.has_perm, (FLIP, FLIP_GLOBAL)))

    @admin.display(description="stops calls of")
    def stops(self, switch: Switch) -> str:
        return names.described(str(switch), switch)

    @admin.display(description="known as")
    def known_as(self, switch: Switch) -> str | SafeString:
        return names.known_as(switch)

    @admin.display(description="state")
    def state(self, switch: Switch) -> str:
        if switch.released_at:
            return "released"
        return "engaged: stops calls" if _engaged(switch) else "ended"

    @admin.display(description="of the callers")
    def part(self, switch: Switch) -> str:
        return "all" if switch.percent == ALL_PERCENT else f"{switch.percent} %, always the same"

    @admin.action(description="Let the selected calls through…", permissions=["flip"])
    def release(self, request: HttpRequest, switches: QuerySet[Switch]) -> HttpResponse | None:
        """Ask first, with what was stopped and why; then release, with a reason."""
        chosen = [switch for switch in switches if _engaged(switch)]
        if not chosen:
            self.message_user(request, "None of them is engaged.", messages.WARNING)
        elif not all(_may_flip(request, switch) for switch in chosen):
            self.message_user(request, "You may not flip all of these.", messages.ERROR)
        elif not (why := request.POST.get("why", "").strip()) or "confirmed" not in request.POST:
            context = {**self.admin_site.each_context(request), "opts": self.model._meta,
                       "title": "Let calls through again?", "switches": chosen}  # fmt: skip
            template = "admin/token_allowance/switch/release.html"
            return TemplateResponse(request, template, context)
        else:
            by = request.user.get_username()
            for switch in chosen:
                self._release(request, switch, by, why)
        return None

    def _release(self, request: HttpRequest, switch: Switch, by: str, why: str) -> None:
        named = {name: getattr(switch, name) or None for name in NAMES}
        done = disengage(**named, everything=not any(named.values()), by=by, reason=why,
                         source="admin")  # fmt: skip
        if done:
            self.log_change(request, switch, f"released: {why}")
            self.message_user(request, f"Calls are let through again: {switch}.")


def _engaged(switch: Switch) -> bool:
    over = switch.ends_at is not None and switch.ends_at <= timezone.now()
    return switch.released_at is None and not over


def _may_flip(request: HttpRequest, switch: Switch) -> bool:
    named = any(getattr(switch, name) for name in NAMES)
    return request.user.has_perm(FLIP if named else FLIP_GLOBAL)
