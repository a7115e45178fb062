"""The host's own tests: each kind of TestCase, and what it sees."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from decimal import Decimal
from unittest import skipUnless

import pytest
from django.db import connection
from django.test import LiveServerTestCase, SimpleTestCase, TestCase, TransactionTestCase

from tests.host.urls import MODEL
from token_allowance import allowance
from token_allowance.allowance import AllowanceExceeded
from token_allowance.models import Limit, Price, Reservation
from token_allowance.testing import aspend, memory_store, spend

COST_MICROS = 100 + 2 * 50  # of one call
own_file = skipUnless(connection.vendor == "postgresql", "a thread shares a database in memory")


def rules() -> None:
    """$0.50 a day for each tenant."""
    Price.objects.create(
        provider="openai", model="gpt-5-mini", input_mtok=Decimal(1), output_mtok=Decimal(2)
    )
    Limit.objects.create(tenant="*", window="day", unit="cost", amount=500_000)


def ask(tenant: str = "acme") -> None:
    with allowance.call(**MODEL, max_output_tokens=100, tenant=tenant) as call:
        call.record(allowance.Usage(input_tokens=100, output_tokens=50))


def used(tenant: str = "acme") -> int:
    (budget,) = allowance.remaining(tenant=tenant)
    assert budget.reserved == 0
    return budget.used


def in_thread(work):
    found = []

    def run() -> None:
        try:
            found.append(work())
        except AllowanceExceeded as error:
            found.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20)
    return found[0]


class Spent:
    """Two tests that each spend the day's budget: the second must not see the first's."""

    in_ledger = True

    def test_a_call_is_refused_once_the_budget_is_spent(self):
        assert used() == 0
        ask()
        assert used() == COST_MICROS
        spend("0.4998", tenant="acme")
        assert used() == 500_000
        with pytest.raises(AllowanceExceeded):
            ask()
        ask("other")
        rows = Reservation.objects.filter(state="settled").count()
        assert rows == (3 if self.in_ledger else 0)

    def test_a_view_answers_429_once_the_budget_is_spent(self):
        assert used() == 0
        assert self.client.get("/ask?tenant=acme").status_code == 200
        spend(Decimal("0.50"), tenant="acme")
        response = self.client.get("/ask?tenant=acme")
        assert (response.status_code, response.json()["scope"]) == (429, "tenant")
        assert self.client.get("/ask?tenant=other").status_code == 200

    async def test_a_coroutine_is_refused_once_the_budget_is_spent(self):
        response = await self.async_client.get("/aask?tenant=acme")
        assert response.status_code == 200
        await aspend("0.50", tenant="acme")
        response = await self.async_client.get("/aask?tenant=acme")
        assert response.status_code == 429
        with pytest.raises(AllowanceExceeded):
            async with allowance.call(**MODEL, max_output_tokens=100, tenant="acme"):
                raise AssertionError("admitted")


class InTransaction(Spent, TestCase):
    @classmethod
    def setUpTestData(cls):
        rules()

    @own_file
    def test_a_thread_does_not_see_the_transaction_of_the_test(self):
        spend("0.50", tenant="acme")
        assert in_thread(lambda: allowance.remaining(tenant="acme")) == []


@memory_store()
class InMemory(Spent, TestCase):
    in_ledger = False

    @classmethod
    def setUpTestData(cls):
        rules()

    def test_one_block_has_its_own_store(self):
        spend("0.50", tenant="acme")
        with memory_store(MODE="observe") as store:
            assert used() == 0
            spend("1.00", tenant="acme")
            ask()
            flags = [row["flags"] for row in store.rows.values()]
            assert flags[-1] == ["would_refuse"]
        assert used() == 500_000
        with pytest.raises(AllowanceExceeded):
            ask()


class Committed(Spent, TransactionTestCase):
    def setUp(self):
        rules()

    def test_threads_share_the_budgets(self):
        assert in_thread(ask) is None
        assert used() == COST_MICROS
        spend("0.50", tenant="acme")
        assert isinstance(in_thread(ask), AllowanceExceeded)


class Served(LiveServerTestCase):
    def setUp(self):
        rules()

    def get(self, tenant):
        url = f"{self.live_server_url}/ask?tenant={tenant}"
        try:
            with urllib.request.urlopen(url, timeout=20) as response:
                return response.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def test_the_server_is_held_to_what_the_test_spends(self):
        assert self.get("acme") == 200
        assert used() == COST_MICROS
        spend("0.50", tenant="acme")
        assert (self.get("acme"), self.get("other")) == (429, 200)

    def test_and_to_what_it_spends_in_memory(self):
        with memory_store():
            spend("0.50", tenant="acme")
            assert (self.get("acme"), self.get("other")) == (429, 200)
        assert self.get("acme") == 200


class WithoutDatabase(SimpleTestCase):
    def test_amounts_are_checked_before_anything_is_asked(self):
        for amount, unit in ((0.4, "cost"), ("-1", "cost"), ("1.5", "tokens"), (-1, "calls")):
            with pytest.raises((TypeError, ValueError)):
                spend(amount, unit=unit, tenant="acme")


@pytest.mark.django_db
@pytest.mark.parametrize("tenant", ["acme", "other"])
def test_the_fixture_gives_each_test_its_own_store(allowance_memory_store, tenant):
    rules()
    assert (used(), allowance_memory_store.rows) == (0, {})
    spend("0.50", tenant="acme")
    with pytest.raises(AllowanceExceeded):
        ask()
    assert not Reservation.objects.exists()
