"""What a project with a user model of its own sees: run as its own tests are run."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from asgiref.sync import async_to_sync
from django.contrib.admin.models import LogEntry
from django.core.management import call_command
from django.test import AsyncClient, TestCase
from django.urls import reverse

from tests.people.models import Person
from token_allowance.models import Limit, LimitIncrease, Price, Reservation, Tenant


def person(email: str) -> Any:
    return Person.objects.create(email=email, is_staff=True, is_superuser=True)


class PeopleTests(TestCase):
    def setUp(self) -> None:
        self.ann = person("ann@example.com")
        self.client.force_login(self.ann)
        Price.objects.create(
            provider="openai", model="gpt-5-mini", input_mtok=Decimal(1), output_mtok=Decimal(2)
        )
        self.limit = Limit.objects.create(user="*", window="day", unit="cost", amount=300)

    def test_the_system_is_in_order_and_no_migration_is_missing(self) -> None:
        call_command("check")
        call_command("makemigrations", "token_allowance", check=True, dry_run=True, verbosity=0)

    def test_a_user_is_charged_by_the_text_of_its_key(self) -> None:
        assert self.client.get("/ask").status_code == 200
        assert Reservation.objects.get().user == str(self.ann.pk)
        refused = self.client.get("/ask", headers={"accept": "application/json"})
        assert (refused.status_code, refused.json()["scope"]) == (429, "user")
        self.client.force_login(person("bo@example.com"))
        assert self.client.get("/ask").status_code == 200

    def test_a_user_is_charged_in_coroutines_too(self) -> None:
        client = AsyncClient()
        client.force_login(self.ann)
        assert async_to_sync(client.get)("/aask").status_code == 200
        assert Reservation.objects.get().user == str(self.ann.pk)

    def test_calls_outlive_the_user(self) -> None:
        self.client.get("/ask")
        key = str(self.ann.pk)
        LogEntry.objects.all().delete()
        self.ann.delete()
        assert Reservation.objects.get().user == key
        self.client.force_login(person("bo@example.com"))
        with self.assertLogs("token_allowance"):  # LABELS does not find the user any more
            page = self.client.get(reverse("admin:token_allowance_reservation_changelist"))
        self.assertContains(page, key)

    def test_the_admin_writes_down_who_changed_what(self) -> None:
        data = {
            "key": "acme",
            "name": "",
            "plan": "",
            "time_zone": "",
            "mode": "",
            "is_active": "on",
        }
        self.client.post(reverse("admin:token_allowance_tenant_add"), data)
        entry = LogEntry.objects.get()
        assert entry.user_id == self.ann.pk
        assert entry.get_edited_object() == Tenant.objects.get()

    def test_more_is_granted_by_the_name_that_the_user_signs_in_with(self) -> None:
        page = reverse("admin:token_allowance_limit_change", args=[self.limit.pk])
        form = self.client.get(page).context["adminform"].form
        data = {
            "amount": "0.0003", "unit": "cost", "window": "day", "anchor_day": "1",
            "is_active": "on", "reason": "for the launch", "notify_at": "70, 90, 100",
            "degrade_at": "90", "hard_stop_percent": "100",
            "increases-TOTAL_FORMS": "1", "increases-INITIAL_FORMS": "0",
            "increases-0-user": str(self.ann.pk), "increases-0-amount": "1",
            "increases-0-until_0": "2126-01-01", "increases-0-until_1": "00:00",
            "increases-0-reason": "launch",
        }  # fmt: skip
        for name in ("tenant", "user", "session", "feature", "model"):
            choice, value = form.fields[name].widget.decompress(getattr(self.limit, name))
            data |= {f"{name}_0": choice, f"{name}_1": value}
        assert self.client.post(page, data).status_code == 302
        granted = LimitIncrease.objects.get()
        assert (granted.by, granted.user) == ("ann@example.com", str(self.ann.pk))
        self.client.get("/ask")
        assert self.client.get("/ask").status_code == 200

    def test_pages_show_the_key_with_the_name(self) -> None:
        self.client.get("/ask")
        row = Reservation.objects.get()
        for page in (
            reverse("admin:token_allowance_reservation_changelist"),
            reverse("admin:token_allowance_reservation_change", args=[row.pk]),
        ):
            self.assertContains(self.client.get(page), f"{self.ann.pk} (ann@example.com)")
