"""Django's classes that take type parameters when checked, and none when run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.core.paginator import Paginator

if TYPE_CHECKING:
    from token_allowance.models import Limit, Price, Switch, SwitchEvent

    ModelAdmin = admin.ModelAdmin[Any]
    SwitchEvents = admin.TabularInline[SwitchEvent, Switch]
    LimitModelForm = forms.ModelForm[Limit]
    PriceModelForm = forms.ModelForm[Price]
    AnyPaginator = Paginator[Any]
else:
    ModelAdmin = admin.ModelAdmin
    SwitchEvents = admin.TabularInline
    LimitModelForm = PriceModelForm = forms.ModelForm
    AnyPaginator = Paginator
