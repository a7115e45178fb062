"""The dashboard's addresses. Mount them where staff look for them: ``path("allowance/", …)``."""

from __future__ import annotations

from django.urls import URLPattern, path

from token_allowance_dashboard.screens import (
    URLPattern,
    app_name,
    drills,
    ledger,
    limit_edit,
    limit_reset,
    limits,
    list,
    name,
    now,
    path,
    spend,
    stops,
    switches,
    token_allowance_dashboard,
    urlpatterns,
)

app_name = "token_allowance_dashboard"
urlpatterns: list[URLPattern] = [
    path("limits/", limits.limits, name="limits"),
    path("limits/new/", limit_edit.new, name="limit_new"),
    path("limits/<int:pk>/", limits.limit, name="limit"),
    path("limits/<int:pk>/edit/", limit_edit.edit, name="limit_edit"),
    path("limits/<int:pk>/reset/", limit_reset.reset, name="limit_reset"),
    path("now/", now.now, name="now"),
    path("now/table/", now.table, name="now_table"),
    path("spend/", spend.spend, name="spend"),
    path("ledger/", ledger.ledger, name="ledger"),
    path("ledger/<uuid:pk>/", ledger.reservation, name="reservation"),
    path("switches/", switches.switches, name="switches"),
    path("switches/stop/", stops.stop, name="switch_stop"),
    path("switches/drills/", drills.drills, name="drills"),
    path("switches/<int:pk>/", switches.switch, name="switch"),
    path("switches/<int:pk>/live/", switches.live, name="switch_live"),
    path("switches/<int:pk>/resume/", stops.resume, name="switch_resume"),
]
