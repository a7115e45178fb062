"""The dashboard's addresses. Mount them where staff look for them: ``path("allowance/", …)``."""

from __future__ import annotations

from django.urls import URLPattern, path

from token_allowance_dashboard.screens import (
    alerts,
    drills,
    health,
    increase,
    ledger,
    limit_edit,
    limit_reset,
    limits,
    now,
    overview,
    spend,
    stops,
    switches,
    tenant,
    tenants,
)

app_name = "token_allowance_dashboard"
urlpatterns: list[URLPattern] = [
    path("", overview.overview, name="overview"),
    path("alerts/", alerts.alerts, name="alerts"),
    path("alerts/rules/", alerts.rules, name="alert_rules"),
    path("alerts/<int:pk>/", alerts.alert, name="alert"),
    path("alerts/<int:pk>/acknowledge/", alerts.acknowledge, name="alert_acknowledge"),
    path("alerts/<int:pk>/mute/", alerts.mute, name="alert_mute"),
    path("health/", health.health, name="health"),
    path("health.json", health.health_json, name="health_json"),
    path("increase/", increase.grant, name="increase"),
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
    path("tenants/", tenants.tenants, name="tenants"),
    path("tenants/<path:key>/", tenant.tenant, name="tenant"),
]
