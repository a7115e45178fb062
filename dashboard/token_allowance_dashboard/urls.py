"""The dashboard's addresses. Mount them where staff look for them: ``path("allowance/", …)``."""

from __future__ import annotations

from django.urls import URLPattern, path

from token_allowance_dashboard.screens import ledger, now, spend

app_name = "token_allowance_dashboard"
urlpatterns: list[URLPattern] = [
    path("now/", now.now, name="now"),
    path("now/table/", now.table, name="now_table"),
    path("spend/", spend.spend, name="spend"),
    path("ledger/", ledger.ledger, name="ledger"),
    path("ledger/<uuid:pk>/", ledger.reservation, name="reservation"),
]
