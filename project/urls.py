"""URLs of the demo project."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("", include("project.demo.urls")),
    path("allowance/", include("token_allowance_dashboard.urls")),
    path("admin/", admin.site.urls),
]
