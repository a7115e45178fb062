"""Limits written in code: what cannot be meant is refused, not rounded."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db.models import F

from token_allowance.models import Limit


@pytest.mark.django_db
@pytest.mark.parametrize("amount", [0.5, True, "0.50", "500000", Decimal("0.50"), None])
def test_a_limit_refuses_an_amount_that_is_no_integer(amount: Any) -> None:
    with pytest.raises(TypeError, match=r"millionths of a dollar: \$0\.50 is 500_000"):
        Limit.objects.create(amount=amount)
    with pytest.raises(TypeError, match="amount is a number of calls"):
        Limit.objects.create(amount=amount, unit="calls")
    if amount != "500000":  # text of a form
        with pytest.raises(ValidationError):
            Limit(amount=amount).full_clean()
    assert not Limit.objects.exists()


@pytest.mark.django_db
def test_a_limit_refuses_an_unknown_window_with_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=r"'daily' is not a window\. Use one of: minute, hour, day"
    ):
        Limit.objects.create(amount=1, window="daily")


@pytest.mark.django_db
def test_a_limit_may_be_raised_by_an_expression_and_saved_in_part() -> None:
    limit = Limit.objects.create(amount=1)
    limit.amount = F("amount") + 1
    limit.save()
    Limit.objects.defer("amount", "window").get().save()
    limit = Limit.objects.only("id").get()
    limit.is_active = False
    limit.save(update_fields=["is_active"])
    assert Limit.objects.get().amount == 2
