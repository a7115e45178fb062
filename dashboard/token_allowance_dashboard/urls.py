"""The dashboard's addresses. Mount them where staff look for them: ``path("allowance/", …)``."""

from __future__ import annotations

from django.urls import URLPattern, path

from token_allowance_dashboard.screens import drills, ledger, now, spend, stops, switches

app_name = "token_allowance_dashboard"
urlpatterns: list[URLPattern] = [
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
