"""The admin of degrade rules: words and empty fields outside, stars inside."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from token_allowance.models import DegradeRule, Price

pytestmark = pytest.mark.django_db

ADD = "admin:token_allowance_degraderule_add"
CHANGE = "admin:token_allowance_degraderule_change"
LIST = "admin:token_allowance_degraderule_changelist"


def save(client: Client, url: str, **given: Any) -> str:
    """Submit the form; the page that is shown then."""
    fields = {"from_model": "", "feature": "", "to_model": "", "max_output_tokens": ""}
    return client.post(url, {**fields, "is_active": "on", **given}, follow=True).text


def rules() -> list[tuple[str, str, str, int | None]]:
    names = ("from_model", "feature", "to_model", "max_output_tokens")
    return list(DegradeRule.objects.values_list(*names))


def test_a_rule_is_written_in_words(admin_client: Client) -> None:
    Price.objects.create(
        provider="openai", model="gpt-5-nano", input_mtok=Decimal(1), output_mtok=Decimal(1)
    )
    page = save(admin_client, reverse(ADD), to_model="gpt-5-nano", max_output_tokens=400)
    assert rules() == [("*", "", "gpt-5-nano", 400)]
    assert "every model" in page
    assert "400 tokens" in page
    assert "no price" not in page
    rule = DegradeRule.objects.get()
    form = admin_client.get(reverse(CHANGE, args=[rule.pk])).context["adminform"].form
    assert form["from_model"].value() == ""
    save(admin_client, reverse(CHANGE, args=[rule.pk]), from_model="gpt-5", max_output_tokens=9)
    assert rules() == [("gpt-5", "", "", 9)]
    assert "the same model" in admin_client.get(reverse(LIST)).text
    assert ">*<" not in page


def test_a_cheaper_model_without_a_price_is_said(admin_client: Client) -> None:
    page = save(admin_client, reverse(ADD), from_model="gpt-5", to_model="gpt-5-nano")
    assert "There is no price of gpt-5-nano yet" in page
    assert len(rules()) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "Name a cheaper model, or a longest answer, or both."),
        ({"max_output_tokens": 0}, "An answer has at least one token."),
        ({"from_model": "gpt-5", "to_model": "gpt-5-2025-08-07"}, "This is the same model."),
        ({"from_model": "gpt-5", "feature": "*", "max_output_tokens": 9}, "is not a value"),
        ({"from_model": "a" * 201, "max_output_tokens": 9}, "at most 200 characters"),
    ],
)
def test_what_does_nothing_is_not_saved(
    admin_client: Client, given: dict[str, Any], said: str
) -> None:
    assert said in save(admin_client, reverse(ADD), **given)
    assert rules() == []


def test_one_rule_for_a_model_and_feature(admin_client: Client) -> None:
    for _ in range(2):
        page = save(admin_client, reverse(ADD), from_model="gpt-5", max_output_tokens=9)
    assert "A rule for this model and feature is in force already." in page
    assert len(rules()) == 1
