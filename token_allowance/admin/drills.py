"""Drills: each time a kill switch was tried, and what was measured. Something else runs them."""

from __future__ import annotations

from django.contrib import admin
from django.utils.safestring import SafeString

from token_allowance.admin.base import NOTHING, ReadOnlyAdmin, figure
from token_allowance.models import Drill

SHOWN = ("target", "verdict", "effect", "last_admission", "retries", "codes_shown")


@admin.register(Drill)
class DrillAdmin(ReadOnlyAdmin):
    list_display = ["started_at", "target", "verdict", "effect", "last_admission",
                    "admitted_after", "retries", "codes_shown", "by"]  # fmt: skip
    list_filter = ["passed"]
    search_fields = ["=tenant", "=feature", "by"]
    search_help_text = "An exact tenant or feature, or part of who drilled."
    fields = (
        "target", ("verdict", "error"), ("started_at", "finished_at", "by"), "processes",
        ("effect", "last_admission", "slo_ms"), ("calls", "admitted_after"),
        ("callers", "attempts", "retries"), "codes_shown",
    )  # fmt: skip
    readonly_fields = SHOWN

    @admin.display(description="stopped calls of")
    def target(self, drill: Drill) -> str:
        named = [f"{n} {v}" for n in ("tenant", "feature") if (v := getattr(drill, n))]
        part = f"{drill.percent} % of " if drill.percent < 100 else ""
        return part + ", ".join(named)

    @admin.display(description="result")
    def verdict(self, drill: Drill) -> str:
        return {True: "passed", False: "failed", None: "not finished"}[drill.passed]

    @admin.display(description="first refusal after")
    def effect(self, drill: Drill) -> str | SafeString:
        return figure(None if drill.effect_ms is None else f"{drill.effect_ms:,} ms")

    @admin.display(description="last admission after")
    def last_admission(self, drill: Drill) -> str | SafeString:
        if drill.last_admission_ms is None:
            return NOTHING
        return figure(f"{drill.last_admission_ms:,} ms" if drill.admitted_after else "none")

    @admin.display(description="attempts per refused call")
    def retries(self, drill: Drill) -> str | SafeString:
        return figure(f"{drill.attempts / drill.callers:.2f}" if drill.callers else None)

    @admin.display(description="callers saw")
    def codes_shown(self, drill: Drill) -> str:
        pairs = sorted(drill.codes.items())
        return ", ".join(f"{code} ({calls:,})" for code, calls in pairs) or NOTHING
