"""URLs of the demo's page."""

from __future__ import annotations

from django.urls import path

from project.demo import views

app_name = "demo"
urlpatterns = [
    path("", views.index, name="index"),
    path("chat/", views.chat, name="chat"),
    path("agent/", views.agent, name="agent"),
    path("climb/", views.climb, name="climb"),
    path("race/", views.race, name="race"),
    path("race/call/", views.race_call, name="race-call"),
    path("start-over/", views.start_over, name="start-over"),
]
