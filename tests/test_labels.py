"""Names beside keys: what LABELS tells is shown in the admin, never instead of the key."""

from __future__ import annotations

import uuid

import pytest
from django.contrib.auth.models import Permission, User
from django.db import DatabaseError, connection
from django.test import override_settings
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_lazy

from token_allowance import conf, labels
from token_allowance.checks import check_callables
from token_allowance.models import Limit, Reservation, Switch, Tenant

pytestmark = pytest.mark.django_db

LINKED = 'acme (<a href="/customers/7/">Acme &lt;Inc&gt;</a>)'
asked: list[tuple[str, str]] = []


def known(dimension, value):
    """LABELS of a host project."""
    asked.append((dimension, value))
    if (dimension, value) == ("tenant", "acme"):
        return "Acme <Inc>", "/customers/7/"
    return "Ana Silva" if dimension == "user" else None


def broken(dimension, value):
    raise KeyError(value)


def spoilt(dimension, value):
    with connection.cursor() as cursor:
        cursor.execute("SELECT no_such_column FROM token_allowance_tenant")


def shady(dimension, value):
    return "free money", " javascript:alert(1)"


def lazy(dimension, value):
    return gettext_lazy("Yes"), None


async def slow(dimension, value):
    return value


def number(dimension, value):
    return 7


def three(dimension, value):
    return "a", "b", "c"


@pytest.fixture(autouse=True)
def nothing_asked():
    asked.clear()


def named(by):
    return override_settings(TOKEN_ALLOWANCE={"LABELS": by})


def page(model, action="changelist", *args):
    return reverse(f"admin:token_allowance_{model}_{action}", args=args)


def call(**given):
    now = timezone.now()
    fixed = {"tenant": "acme", "user": "u_1", "model": "m", "state": "released"}
    times = {"created_at": now, "settled_at": now, "expires_at": now}
    return Reservation.objects.create(**{"id": uuid.uuid4(), **fixed, **times, **given})


def rows():
    return {
        "reservation": call(),
        "limit": Limit.objects.create(tenant="acme", user="*", amount=1),
        "switch": Switch.objects.create(tenant="acme", reason="runaway loop", by="ops"),
        "tenant": Tenant.objects.create(key="acme", name="Acme of old"),
    }


def test_a_call_shows_keys_with_their_names(admin_client):
    row = call()
    with named("tests.test_labels.known"):
        for url in (page("reservation"), page("reservation", "change", row.pk)):
            text = admin_client.get(url).text
            assert LINKED in text
            assert "u_1 (Ana Silva)" in text


@pytest.mark.parametrize("model", ["limit", "switch", "tenant"])
def test_definitions_show_keys_with_their_names(admin_client, model):
    row = rows()[model]
    with named(known):
        listed = admin_client.get(page(model)).text
        opened = admin_client.get(page(model, "change", row.pk)).text
    assert "Acme &lt;Inc&gt;" in listed
    assert "acme" in listed
    assert '<a href="/customers/7/">Acme &lt;Inc&gt;</a>' in opened
    assert "known as" in opened.lower()
    assert "<Inc>" not in listed + opened


def test_a_limit_for_each_value_has_no_name(admin_client):
    row = Limit.objects.create(tenant="*", user="*", amount=1)
    with named(known):
        assert "known as" not in admin_client.get(page("limit", "change", row.pk)).text.lower()
        assert "each user of each tenant<" in admin_client.get(page("limit")).text
    assert asked == []


def test_each_value_is_asked_for_once_on_a_page(admin_client):
    for _ in range(5):
        call()
    with named(known):
        admin_client.get(page("reservation"))
    assert sorted(asked) == [("model", "m"), ("tenant", "acme"), ("user", "u_1")]


@pytest.mark.parametrize("by", [broken, spoilt, slow, number, three])
@pytest.mark.filterwarnings("ignore:coroutine 'slow' was never awaited:RuntimeWarning")
def test_a_callable_that_fails_leaves_the_keys(admin_client, caplog, by):
    found = rows()
    with named(by):
        for model, row in found.items():
            caplog.clear()
            listed = admin_client.get(page(model))
            assert listed.status_code == 200
            assert "acme" in listed.text
            assert [r.message[:17] for r in caplog.records] == ["LABELS failed for"]
            assert admin_client.get(page(model, "change", row.pk)).status_code == 200


def test_an_address_that_runs_a_script_is_no_link(admin_client):
    call()
    with named(shady):
        text = admin_client.get(page("reservation")).text
    assert "acme (free money)" in text
    assert "javascript:" not in text


def test_a_failed_query_does_not_end_the_transaction():
    with named(spoilt):
        assert labels.Labels().of("tenant", "acme") is None
    assert Tenant.objects.count() == 0
    with pytest.raises(DatabaseError), connection.cursor() as cursor:
        cursor.execute("SELECT no_such_column FROM token_allowance_tenant")
    connection.set_rollback(True)


@pytest.mark.parametrize(
    ("found", "label"),
    [
        (None, None),
        ("", None),
        ((None, "/x"), None),
        (" Acme ", labels.Label("Acme")),
        (("Acme", None), labels.Label("Acme")),
        (("Acme", "https://crm.example/7"), labels.Label("Acme", "https://crm.example/7")),
        (("Acme", "data:text/html,x"), labels.Label("Acme")),
    ],
)
def test_what_the_callable_may_return(found, label):
    assert labels.read(found) == label


def test_a_translated_name_is_text():
    assert labels.read(lazy("user", "x")) == labels.Label("Yes")


@pytest.mark.parametrize("wrong", [7, "nodots", "a..b", ["a.b"]])
def test_what_is_no_callable_is_refused(wrong):
    assert conf.problems({"LABELS": wrong}) == [
        "TOKEN_ALLOWANCE['LABELS'] must be a callable or its dotted path."
    ]


@pytest.mark.parametrize("path", ["tests.test_labels.nothing", "no.such.module", "tests.work"])
def test_a_path_that_names_nothing_to_call_is_an_error(path):
    with named(path):
        (error,) = check_callables()
    assert (error.id, path in error.msg) == ("allowance.E005", True)
    with named("tests.test_labels.known"):
        assert check_callables() == []


def test_without_labels_no_page_speaks_of_names(admin_client):
    for model, row in rows().items():
        if model == "switch":
            continue  # its page is all read-only fields, shown whether filled or not
        for url in (page(model), page(model, "change", row.pk)):
            assert "known as" not in admin_client.get(url).text.lower()


def test_the_tenant_of_a_limit_is_offered_while_it_is_typed(admin_client, client):
    Tenant.objects.create(key="acme", name="Acme <Inc>")
    Tenant.objects.create(key="gone", is_active=False)
    text = admin_client.get(page("limit", "add")).text
    offered = '<datalist id="known-tenants"><option value="acme">Acme &lt;Inc&gt;</option>'
    assert offered + "</datalist>" in text
    assert text.count('list="known-tenants"') == 1
    limit = Limit.objects.create(tenant="*", amount=1)
    changed = admin_client.get(page("limit", "change", limit.pk)).text
    # And where more is granted to one: that form, and the empty one that Django copies.
    assert changed.count('list="known-tenants"') == 3
    writer = User.objects.create_user("writer", password="x", is_staff=True)
    writer.user_permissions.set(Permission.objects.filter(codename="add_limit"))
    client.force_login(writer)
    text = client.get(page("limit", "add")).text
    assert "acme" not in text
    assert 'name="tenant_1"' in text


@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ({"own_limits": "yes"}, ["acme"]),
        ({"own_limits": "no"}, ["globex"]),
        ({"switch": "stopped"}, ["acme"]),
        ({"switch": "none"}, ["globex"]),
    ],
)
def test_tenants_are_found_by_their_limits_and_switches(admin_client, query, keys):
    rows()
    Tenant.objects.create(key="globex")
    Switch.objects.create(tenant="globex", reason="over", by="ops", ends_at=timezone.now())
    found = admin_client.get(page("tenant"), query).context["cl"].result_list
    assert [row.key for row in found] == keys


def test_tenants_can_be_chosen_by_autocomplete(admin_client):
    """Any admin of the host with a foreign key to Tenant may name it in autocomplete_fields."""
    from django.contrib import admin

    registered = admin.site._registry[Tenant]
    assert registered.search_fields
    assert registered.get_ordering(None) or Tenant._meta.ordering
