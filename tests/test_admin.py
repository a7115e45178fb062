"""The admin: dollars and words outside, integers and stars inside."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from decimal import Decimal

import pytest
from django.contrib.auth.models import Permission, User
from django.urls import reverse
from django.utils import timezone

from token_allowance import pricing
from token_allowance.admin import ReservationAdmin, amounts, paginators
from token_allowance.admin.limit_form import LimitForm
from token_allowance.limits import Unit
from token_allowance.models import (
    Limit,
    ModelAlias,
    Price,
    Reservation,
    Switch,
    SwitchEvent,
    Tenant,
)
from token_allowance.usage import Usage

pytestmark = pytest.mark.django_db

NAMES = ["tenant", "limit", "price", "modelalias", "reservation", "switch"]


def page(model, action="changelist", *args):
    return reverse(f"admin:token_allowance_{model}_{action}", args=args)


@pytest.fixture
def staff(client):
    """A client signed in as staff who may only look."""
    user = User.objects.create_user("viewer", password="x", is_staff=True)
    user.user_permissions.set(
        Permission.objects.filter(
            content_type__app_label="token_allowance", codename__startswith="view"
        )
    )
    client.force_login(user)
    return client


def sonnet(**given):
    row = {
        "provider": "anthropic",
        "model": "claude-sonnet-4-5",
        "input_mtok": Decimal(3),
        "output_mtok": Decimal(15),
        "cache_read_mtok": Decimal("0.3"),
        "source": "genai-prices",
    }
    return Price.objects.create(**{**row, **given})


def call(**given):
    now = timezone.now()
    row = {
        "id": uuid.uuid4(),
        "tenant": "acme",
        "feature": "support-chat",
        "model": "claude-sonnet-4-5",
        "state": "settled",
        "reserved_micros": 12_400,
        "created_at": now,
        "settled_at": now,
        "expires_at": now,
    }
    return Reservation.objects.create(**{**row, **given})


def settled(**given):
    price = pricing.ModelPrice(
        provider="anthropic",
        model="claude-sonnet-4-5",
        input_mtok=Decimal(3),
        output_mtok=Decimal(15),
        cache_read_mtok=Decimal("0.3"),
    )
    usage = Usage(input_tokens=1_605, output_tokens=310, cache_read_tokens=401)
    cost = pricing.cost(usage, price)
    return call(
        usage=usage.as_dict(),
        price=price.as_dict(),
        cost_micros=cost.micros,
        cost_exact=cost.exact,
        **given,
    )


def limit_form(**given):
    """What the form of a new limit posts, as it is offered."""
    data = {
        "amount": "0.50",
        "unit": "cost",
        "window": "day",
        "anchor_day": "1",
        "time_zone": "",
        "mode": "",
        "plan": "",
        "is_active": "on",
        "expires_at_0": "",
        "expires_at_1": "",
        "reason": "as agreed",
        "increases-TOTAL_FORMS": "0",
        "increases-INITIAL_FORMS": "0",
    }
    for name, field in LimitForm().fields.items():
        if hasattr(field, "compress") and name != "expires_at":
            choice, value = field.widget.decompress(LimitForm().initial.get(name))
            data |= {f"{name}_0": choice, f"{name}_1": value}
    return {**data, **given}


@pytest.mark.parametrize("name", NAMES)
def test_pages_open_for_a_superuser(admin_client, name):
    row = rows()[name]
    assert admin_client.get(page(name)).status_code == 200
    assert admin_client.get(page(name), {"q": "acme"}).status_code == 200
    assert admin_client.get(page(name, "change", row.pk)).status_code == 200
    may_add = name not in ("reservation", "switch")
    assert admin_client.get(page(name, "add")).status_code == (200 if may_add else 403)


@pytest.mark.parametrize("name", NAMES)
def test_pages_open_for_staff_who_may_only_look(staff, name):
    row = rows()[name]
    assert staff.get(page(name)).status_code == 200
    shown = staff.get(page(name, "change", row.pk))
    assert shown.status_code == 200
    assert "<td>*" not in shown.text
    assert '<div class="readonly">*' not in shown.text
    assert 'name="_save"' not in shown.text
    assert staff.get(page(name, "add")).status_code == 403


def rows():
    switch = Switch.objects.create(tenant="acme", reason="runaway loop", by="ops")
    SwitchEvent.objects.create(switch=switch, action="engaged", by="ops", reason="runaway loop")
    return {
        "tenant": Tenant.objects.create(key="acme", plan="pro"),
        "limit": Limit.objects.create(tenant="*", user="*", amount=500_000),
        "price": sonnet(),
        "modelalias": ModelAlias.objects.create(alias="chat", provider="acme", model="m"),
        "reservation": settled(),
        "switch": switch,
    }


def test_a_new_limit_is_for_each_user_of_each_tenant(admin_client):
    data = limit_form()
    assert (data["tenant_0"], data["user_0"], data["feature_0"]) == ("each", "each", "together")
    assert admin_client.post(page("limit", "add"), data).status_code == 302
    limit = Limit.objects.get()
    assert (limit.tenant, limit.user, limit.feature, limit.amount) == ("*", "*", "", 500_000)
    listed = admin_client.get(page("limit")).text
    assert "each user of each tenant" in listed
    assert "$0.50" in listed


def test_only_one_value(admin_client):
    data = limit_form(user_0="together", tenant_0="only", tenant_1="acme", amount="1200")
    assert admin_client.post(page("limit", "add"), data).status_code == 302
    limit = Limit.objects.get()
    assert (limit.tenant, limit.user, limit.amount) == ("acme", "", 1_200_000_000)
    form = admin_client.get(page("limit", "change", limit.pk)).text
    assert 'value="acme"' in form
    assert 'value="1200.00"' in form
    assert "stays counted" in form


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"amount": "NaN"}, "An amount must be a finite number of dollars"),
        ({"amount": "-1"}, "An amount must not be negative"),
        ({"amount": "1e400"}, "An amount must not exceed"),
        ({"amount": "0,50"}, "is not an amount of dollars; write it like 0.50 or 1250"),
        ({"amount": "0.5", "unit": "tokens"}, "Write a whole number of tokens, such as 50000"),
        ({"amount": "9007199254740992", "unit": "calls"}, "At most 9007199254740991 calls"),
        ({"tenant_0": "only"}, "Say which tenant."),
        ({"tenant_0": "only", "tenant_1": "*"}, "is not a value"),
        ({"tenant_0": "each", "tenant_1": "acme"}, "choose &quot;only this tenant&quot;"),
        ({"tenant_0": "together", "plan": "pro"}, "A plan needs"),
        ({"anchor_day": "3"}, "The first day can be 1, except for weeks and months."),
        ({"window": "week", "anchor_day": "8"}, "The first day can be 1 to 7."),
        ({"time_zone": "Mars/Olympus"}, "Select a valid choice"),
    ],
)
def test_what_cannot_be_is_said_beside_its_field(admin_client, given, text):  # case C73
    answer = admin_client.post(page("limit", "add"), limit_form(**given))
    assert answer.status_code == 200
    assert text in answer.text
    assert "Constraint" not in answer.text
    assert not Limit.objects.exists()


def test_a_second_limit_of_the_same_kind_is_refused_in_words(admin_client):
    Limit.objects.create(tenant="*", user="*", amount=1)
    answer = admin_client.post(page("limit", "add"), limit_form())
    assert "An active limit with this scope, window and unit exists." in answer.text


def test_an_amount_of_zero_is_an_amount(admin_client):
    admin_client.post(page("limit", "add"), limit_form(amount="0"))
    assert Limit.objects.get().amount == 0


def test_changing_the_amount_says_that_spend_is_kept(admin_client):
    limit = Limit.objects.create(tenant="*", user="*", amount=500_000)
    data = limit_form(amount="2")
    answer = admin_client.post(page("limit", "change", limit.pk), data, follow=True)
    assert "The amount is $2.00 now. What was spent in this window is kept." in answer.text
    assert (
        admin_client.post(page("limit", "change", limit.pk), data, follow=True).status_code == 200
    )


@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize("amount", [0, 1, 3_200, 500_000, 1_234_567_000_000, 2**53 - 1])
def test_an_amount_is_written_as_it_is_read(unit, amount):
    assert amounts.parsed(amounts.written(amount, unit), unit) == amount


def test_a_limit_that_is_one_budget_shows_what_is_used(admin_client):
    Limit.objects.create(tenant="acme", amount=10_000)
    settled()
    text = admin_client.get(page("limit")).text
    assert "$0.008383, 83%" in text
    assert '<meter min="0"' in text


def test_no_star_and_no_number_of_micros_is_shown(admin_client):
    Limit.objects.create(tenant="*", plan="pro", amount=3_200, window="month", anchor_day=15)
    text = admin_client.get(page("limit")).text
    assert "each tenant on plan pro" in text
    assert "$0.0032" in text  # case C90
    assert "a month from day 15" in text
    assert "3200" not in text


def test_limits_are_found_by_what_they_look_at(admin_client):
    Limit.objects.create(feature="agent", amount=1)
    Limit.objects.create(amount=2)
    assert "feature agent" in admin_client.get(page("limit"), {"looks_at": "feature"}).text
    everyone = admin_client.get(page("limit"), {"looks_at": "everyone"}).text
    assert "feature agent" not in everyone
    assert everyone.count('class="action-select"') == 1


def price_form(**given):
    data = {
        "provider": "anthropic",
        "model": "claude-sonnet-4-5",
        "effective_from_0": "2026-11-30",
        "effective_from_1": "00:00:00",
        "service_tier": "",
        "min_input_tokens": "0",
        "input_mtok": "3",
        "output_mtok": "12.5",
        "cache_read_mtok": "",
        "cache_write_5m_mtok": "",
        "cache_write_1h_mtok": "",
    }
    return {**data, **given}


def test_an_added_price_is_an_admins(admin_client):
    assert admin_client.post(page("price", "add"), price_form()).status_code == 302
    price = Price.objects.get()
    assert (price.source, price.output_mtok) == ("admin", Decimal("12.5"))
    assert "$0.00925" in admin_client.get(page("price")).text  # 1k in + 500 out


def test_prices_are_never_changed_or_removed(admin_client):
    price = sonnet()
    assert admin_client.post(page("price", "change", price.pk), price_form()).status_code == 403
    assert admin_client.post(page("price", "delete", price.pk), {"post": "yes"}).status_code == 403
    assert "delete_selected" not in admin_client.get(page("price")).text


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"output_mtok": "3000"},
            "Output: $3,000.00 per million tokens, but the bundled price is $15.00",
        ),
        ({"input_mtok": "0.25"}, "Input: $0.25 per million tokens, but the bundled price is $3.00"),
    ],
)
def test_a_slip_of_ten_times_is_asked_about(admin_client, given, text):
    sonnet()
    assert text in admin_client.post(page("price", "add"), price_form(**given)).text
    assert not Price.objects.filter(source="admin").exists()
    admin_client.post(page("price", "add"), price_form(**given, sure="on"))
    assert Price.objects.filter(source="admin").exists()


def test_negative_and_repeated_prices_are_refused_in_words(admin_client):
    refused = admin_client.post(page("price", "add"), price_form(input_mtok="-1"))
    assert "A price cannot be negative." in refused.text
    assert "Constraint" not in refused.text
    admin_client.post(page("price", "add"), price_form())
    again = admin_client.post(page("price", "add"), price_form())
    assert again.status_code == 200
    assert "already" in again.text
    assert Price.objects.count() == 1


def test_an_own_price_says_which_bundled_ones_it_hides(admin_client):
    sonnet()
    sonnet(min_input_tokens=200_001, input_mtok=Decimal(6))
    sonnet(service_tier="batch")
    text = admin_client.post(page("price", "add"), price_form(), follow=True).text
    assert (
        "Add rows of your own for calls with 200,001 input tokens or more, service tier batch"
        in text
    )


def test_prices_in_the_future_can_be_listed(admin_client):
    sonnet(effective_from=timezone.now() + dt.timedelta(days=2))
    sonnet(model="claude-2")
    future = admin_client.get(page("price"), {"date": "future"}).text
    assert "claude-sonnet-4-5" in future
    assert "claude-2" not in future
    assert "claude-2" in admin_client.get(page("price"), {"service_tier": "default"}).text


def test_an_alias_of_an_unpriced_model_is_saved_with_a_warning(admin_client):
    data = {"alias": "chat", "provider": "azure", "model": "gpt-4"}
    answer = admin_client.post(page("modelalias", "add"), data, follow=True)
    assert "There is no price of azure gpt-4 yet" in answer.text


def test_a_call_shows_its_arithmetic(admin_client):
    row = settled()
    text = admin_client.get(page("reservation", "change", row.pk)).text
    assert (
        "1,204 input × $3.00/M + 310 output × $15.00/M + 401 read from cache × $0.30/M "
        "= $0.008383, rounded up" in text
    )
    assert "-$0.004017" in text


def test_a_call_without_a_price_says_so(admin_client):
    row = call(flags=["unpriced"])
    text = admin_client.get(page("reservation", "change", row.pk)).text
    assert "No price or no usage is kept with this call." in text
    listed = admin_client.get(page("reservation")).text
    assert "unpriced" in listed
    assert "unknown" in listed
    assert "$0.00<" not in listed


def test_a_charge_that_differs_from_its_usage_is_pointed_out(admin_client):
    row = settled()
    Reservation.objects.filter(pk=row.pk).update(cost_micros=12_400, cost_exact=12_400)
    text = admin_client.get(page("reservation", "change", row.pk)).text
    assert "charged was $0.0124 (see the flags)" in text


def test_the_ledger_cannot_be_written(admin_client):
    row = settled()
    assert admin_client.post(page("reservation", "change", row.pk), {}).status_code == 403
    assert admin_client.post(page("reservation", "delete", row.pk), {}).status_code == 403
    assert 'class="action-select"' not in admin_client.get(page("reservation")).text


def found(client, **query):
    answer = client.get(page("reservation"), query)
    assert answer.status_code == 200
    return set(re.findall(r"/reservation/([0-9a-f-]{36})/change/", answer.text))


def test_calls_are_found_by_exact_values(admin_client):
    one = call(trace_id="tr_1", provider_request_id="req_1")
    two = call(idempotency_key="job-7")
    assert found(admin_client, q=str(one.pk)) == {str(one.pk)}
    assert found(admin_client, q="tr_1") == {str(one.pk)}
    assert found(admin_client, q=" req_1 ") == {str(one.pk)}
    assert found(admin_client, q="job-7") == {str(two.pk)}
    assert found(admin_client, q="tr_") == set()
    assert found(admin_client) == {str(one.pk), str(two.pk)}


def test_calls_are_filtered(admin_client):
    old = call(created_at=timezone.now() - dt.timedelta(hours=3), feature="agent", state="released")
    call()
    assert found(admin_client, feature="agent") == {str(old.pk)}
    assert found(admin_client, feature="nobody") == set()
    assert found(admin_client, state__exact="released") == {str(old.pk)}
    assert str(old.pk) not in found(admin_client, time="hour")


def test_the_ledger_is_never_counted(admin_client, monkeypatch, django_assert_max_num_queries):
    monkeypatch.setattr(paginators, "MOST", 3)
    monkeypatch.setattr(ReservationAdmin, "list_per_page", 2)
    for _ in range(5):
        call()
    with django_assert_max_num_queries(12) as queries:
        text = admin_client.get(page("reservation")).text
    asked = [q["sql"] for q in queries if "token_allowance_reservation" in q["sql"]]
    assert [sql for sql in asked if "COUNT(" in sql.upper() or "LIMIT" not in sql.upper()] == []
    assert "The newest" in text


def test_a_tenant_with_calls_is_kept(admin_client):
    kept, unused = Tenant.objects.create(key="acme"), Tenant.objects.create(key="globex")
    call()
    Limit.objects.create(tenant="acme", amount=500_000)
    text = admin_client.get(page("tenant", "change", kept.pk)).text
    assert "$0.50 per day for tenant acme" in text
    answer = admin_client.post(page("tenant", "delete", kept.pk), {"post": "yes"})
    assert answer.status_code == 403
    chosen = {"action": "delete_selected", "_selected_action": [kept.pk], "post": "yes"}
    assert admin_client.post(page("tenant"), chosen).status_code in (200, 403)
    assert (
        admin_client.post(page("tenant", "delete", unused.pk), {"post": "yes"}).status_code == 302
    )
    assert list(Tenant.objects.all()) == [kept]


def test_a_tenants_key_is_fixed_and_its_zone_checked(admin_client):
    tenant = Tenant.objects.create(key="acme")
    data = {"key": "other", "name": "Acme", "plan": "", "time_zone": "Berlin", "mode": ""}
    refused = admin_client.post(page("tenant", "change", tenant.pk), data)
    assert "is not a time zone such as Europe/Berlin" in refused.text
    data["time_zone"] = "Europe/Berlin"
    admin_client.post(page("tenant", "change", tenant.pk), data)
    tenant.refresh_from_db()
    assert (tenant.key, tenant.time_zone) == ("acme", "Europe/Berlin")


def test_a_switch_is_only_looked_at(admin_client):
    switch = rows()["switch"]
    text = admin_client.get(page("switch", "change", switch.pk)).text
    assert "engaged: stops calls" in text
    assert text.count("runaway loop") >= 2  # the switch and its history
    assert admin_client.post(page("switch", "change", switch.pk), {}).status_code == 403
    assert "tenant acme" in admin_client.get(page("switch"), {"state": "engaged"}).text
    assert "tenant acme" not in admin_client.get(page("switch"), {"state": "over"}).text


def test_models_called_without_a_price_are_named_above_the_prices(admin_client):
    call(provider="acme", model="m-7", flags=["unpriced"])
    text = admin_client.get(page("price")).text
    assert "acme m-7</a>: 1 call" in text
    assert "?provider=acme&amp;model=m-7" in text


def test_the_price_that_matches_a_model_is_shown(admin_client):
    row = sonnet()
    text = admin_client.get(page("price", "match"), {"model": "claude-sonnet-4-5-20250929"}).text
    assert "claude-sonnet-4-5-20250929 (no rows), claude-sonnet-4-5 (1 row)" in text
    assert page("price", "change", row.pk) in text
    assert "calls of this model are unpriced" in (
        admin_client.get(page("price", "match"), {"model": "claude-sonnet-4.5"}).text
    )
    assert "$3.00 in, $15.00 out" in text
    assert page("price", "changelist") in text  # a breadcrumb
    empty = admin_client.get(page("price", "match")).text
    assert "This field is required" not in empty


def test_who_may_not_see_prices_may_not_look_for_them(client):
    client.force_login(User.objects.create_user("nobody", password="x", is_staff=True))
    assert client.get(page("price", "match"), {"model": "m"}).status_code == 403


def test_fees_are_part_of_the_arithmetic(admin_client):
    rates = {"input_mtok": "3", "output_mtok": "15", "web_search_thousand": "10"}
    price = pricing.ModelPrice.from_dict({"provider": "p", "model": "m", **rates})
    usage = Usage(9_548, 528, web_searches=2)
    cost = pricing.cost(usage, price)
    row = call(state="settled", cost_micros=cost.micros, cost_exact=cost.exact,
               price=price.as_dict(), usage=usage.as_dict())  # fmt: skip
    text = admin_client.get(page("reservation", "change", row.pk)).text
    assert "2 web searches × $10.00/thousand = $0.056564" in text


def test_calls_are_found_by_their_flag(admin_client):
    flagged, other = call(flags=["late", "would_refuse"]), call(flags=["estimated"])
    text = admin_client.get(page("reservation"), {"flag": "would_refuse"}).text
    assert page("reservation", "change", flagged.pk) in text
    assert page("reservation", "change", other.pk) not in text
