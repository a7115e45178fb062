"""Django's classes that take type parameters when checked, and none when run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.core.paginator import Paginator

if TYPE_CHECKING:
    from token_allowance.models import (
        Alert,
        Channel,
        DegradeRule,
        Delivery,
        Limit,
        LimitIncrease,
        Price,
        Switch,
        SwitchEvent,
    )

    ModelAdmin = admin.ModelAdmin[Any]
    SwitchEvents = admin.TabularInline[SwitchEvent, Switch]
    Deliveries = admin.TabularInline[Delivery, Alert]
    LimitModelForm = forms.ModelForm[Limit]
    IncreaseModelForm = forms.ModelForm[LimitIncrease]
    IncreaseFormSet = forms.BaseInlineFormSet[LimitIncrease, Limit, Any]
    Increases = admin.StackedInline[LimitIncrease, Limit]
    PriceModelForm = forms.ModelForm[Price]
    DegradeModelForm = forms.ModelForm[DegradeRule]
    ChannelModelForm = forms.ModelForm[Channel]
    AnyPaginator = Paginator[Any]
else:
    ModelAdmin = admin.ModelAdmin
    SwitchEvents = Deliveries = admin.TabularInline
    Increases = admin.StackedInline
    LimitModelForm = PriceModelForm = IncreaseModelForm = DegradeModelForm = forms.ModelForm
    ChannelModelForm = forms.ModelForm
    IncreaseFormSet = forms.BaseInlineFormSet
    AnyPaginator = Paginator
